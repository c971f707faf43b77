// Reads values back from the figures under the pointer. Each panel states its axes in data-x and
// data-y, and each series is a path of absolute M and L vertices, so positions invert to values.
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";
  const REACH_PX = 40;

  const digits = (v) => {
    const size = Math.abs(v);
    return size === 0 ? "0" : v.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.0995 ? 2 : 3);
  };
  const scaled = (v, steps) => {
    const [least, unit] = steps.find(([least]) => Math.abs(v) >= least * 0.9995) || steps[steps.length - 1];
    return digits(v / least) + " " + unit;
  };
  const show = {
    time: (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]),
    rate: (pps) => scaled(pps, [[1e9, "Gpkt/s"], [1e6, "Mpkt/s"], [1e3, "kpkt/s"], [1, "pkt/s"]]),
    seconds: (s) => s.toFixed(3) + " s",
    cycles: (c) => digits(c) + " cycles",
    packets: (n) => digits(n) + " packets",
    squared: (n) => n.toExponential(1) + " ns²",
    number: (v) => (v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1) : scaled(v, [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]).trim()),
    bytes: (b) => scaled(b, [[1 << 30, "GB"], [1 << 20, "MB"], [1 << 10, "kB"], [1, "B"]]),
    share: (p) => {
      const size = Math.abs(p * 100);
      const small = size > 0 && size < 0.095;
      return (small ? (p * 100).toFixed(Math.min(12, 1 - Math.floor(Math.log10(size)))) : digits(p * 100)) + " %";
    },
    quantile: (q) => "p" + (q * 100).toFixed(Math.min(7, Math.max(1, Math.ceil(-Math.log10(1 - q) - 1)))).replace(/\.?0+$/, ""),
  };

  // How numbers read, for scripts of single pages.
  globalThis.taut = { show };

  const axis = (text) => {
    const [spacing, quantity, ...numbers] = text.split(" ");
    const [min, max, from, to] = numbers.map(Number);
    const value = (px) => {
      const t = Math.min(1, Math.max(0, (px - from) / (to - from)));
      if (spacing === "log") return min * Math.pow(max / min, t);
      if (spacing === "nines") return 1 - Math.pow(1 - max, t);
      return min + t * (max - min);
    };
    return { low: Math.min(from, to), high: Math.max(from, to), text: (px) => show[quantity](value(px)) };
  };

  // A panel is read once, when first pointed at.
  const known = new WeakMap();
  const read = (group) => {
    if (known.has(group)) return known.get(group);
    const series = [...group.querySelectorAll("path[data-label]")].map((path) => ({
      label: path.dataset.label,
      colour: getComputedStyle(path).stroke,
      points: [...path.getAttribute("d").matchAll(/[ML](-?[\d.]+),(-?[\d.]+)/g)].map((m) => [Number(m[1]), Number(m[2])]),
    }));
    const marks = [...group.querySelectorAll("[data-tip]")].map((mark) => {
      const box = mark.getBBox();
      return { tip: mark.dataset.tip, at: [box.x + box.width / 2, box.y + box.height / 2] };
    });
    const panel = { mode: group.dataset.hover, x: axis(group.dataset.x), y: axis(group.dataset.y), series, marks };
    known.set(group, panel);
    return panel;
  };

  const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const nearest = (points, cost) => points.reduce((best, p) => (cost(p) < cost(best) ? p : best));

  // What to show at a position: a heading, lines of [colour, text], and the points they belong to.
  const readout = (panel, at) => {
    if (panel.mode === "x") {
      const found = panel.series
        .filter((s) => s.points.length && s.points[0][0] <= at[0] + 3 && s.points[s.points.length - 1][0] >= at[0] - 3)
        .map((s) => [s, nearest(s.points, (p) => Math.abs(p[0] - at[0]))]);
      if (!found.length) return null;
      const lines = found.sort((a, b) => a[1][1] - b[1][1]).map(([s, p]) => [s.colour, s.label + ": " + panel.y.text(p[1])]);
      return { head: panel.x.text(at[0]), lines, points: found.map(([, p]) => p) };
    }
    const dots = panel.series.flatMap((s) => s.points.map((p) => ({ at: p, s })));
    const all = [...dots, ...panel.marks];
    if (!all.length) return null;
    const best = nearest(all, (p) => distance(p.at, at));
    if (distance(best.at, at) > REACH_PX) return null;
    if (best.tip) return { ...fromTip(best.tip), points: [best.at] };
    return { head: best.s.label, lines: [[best.s.colour, panel.y.text(best.at[1]) + " at " + panel.x.text(best.at[0])]], points: [best.at] };
  };
  const fromTip = (text) => {
    const [head, ...rest] = text.split("|");
    return { head, lines: rest.map((line) => [null, line]), points: [] };
  };

  const mark = (svg, points) => {
    svg.querySelectorAll(".hover").forEach((old) => old.remove());
    for (const [x, y] of points) {
      const ring = document.createElementNS(SVG, "circle");
      for (const [name, value] of Object.entries({ class: "hover", cx: x, cy: y, r: 5, fill: "none", stroke: "#111", "pointer-events": "none" }))
        ring.setAttribute(name, value);
      svg.append(ring);
    }
  };

  const place = (found, event) => {
    tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: found.head }));
    for (const [colour, text] of found.lines) {
      const line = document.createElement("div");
      if (colour) {
        const swatch = document.createElement("i");
        swatch.style.background = colour;
        line.append(swatch);
      }
      line.append(text);
      tip.append(line);
    }
    tip.hidden = false;
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4) + "px";
  };

  for (const svg of document.querySelectorAll("svg.fig")) {
    // Titles are for figures opened on their own; here they would show beside the read-out.
    svg.querySelectorAll("[data-tip] > title, [data-label] > title").forEach((title) => title.remove());
    const hide = () => { tip.hidden = true; mark(svg, []); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const row = event.target.closest("g[data-tip]");
      const inside = (panel) => at.x >= panel.x.low - 6 && at.x <= panel.x.high + 6 && at.y >= panel.y.low - 6 && at.y <= panel.y.high + 6;
      const panel = [...svg.querySelectorAll(".panel")].map(read).find(inside);
      const found = row ? fromTip(row.dataset.tip) : panel && readout(panel, [at.x, at.y]);
      if (!found) return hide();
      mark(svg, found.points);
      place(found, event);
    });
  }
})();

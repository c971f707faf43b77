// Asks the models of a page at other points than the one that it was written with. The element "models" holds the terms, what can
// be moved, and answers that are known: the script finds those again before it shows its sliders.
"use strict";
(() => {
  const asked = JSON.parse(document.getElementById("models").textContent);
  const controls = document.getElementById("sliders");
  const figure = document.getElementById("asked-rate");

  const product = (factors, at) => factors.reduce((sum, [name, power]) => sum * Math.pow(at[name], power), 1);
  const sum = (values) => values.reduce((all, value) => all + value, 0);

  // As a model predicts: the sum of its terms, and the interval of a single run.
  const cyclesOf = (port, at) => {
    const x = port.terms.map((term) => product(term.factors, at));
    const value = sum(port.terms.map((term, i) => term.value * x[i]));
    const own = Math.max(0, sum(x.map((left, i) => left * sum(x.map((right, j) => port.covariance[i][j] * right)))));
    const scatter = port.residual_std * (port.relative ? value : 1);
    const half = port.reach * Math.sqrt(own + scatter * scatter);
    const least = Math.max(0, value);
    return [least, Math.max(0, least - half), least + half];
  };

  // As a machine carries: the lesser of its link and its cores.
  const answer = (port, { at, cores, link_bit_s }) => {
    const cycles = cyclesOf(port, at);
    const available = cores * asked.hz;
    const link = link_bit_s / ((at.frame_bytes + asked.overhead_bytes) * 8);
    const pps = [cycles[0], cycles[2], cycles[1]].map((c) => Math.min(link, available / c));
    const ofTask = port.terms.filter((term) => term.factors.some(([name]) => name === asked.task));
    const task = (pps[0] * sum(ofTask.map((term) => term.value * product(term.factors, at)))) / available;
    const all = (pps[0] * cycles[0]) / available;
    return {
      cycles,
      pps,
      is_processor: available / cycles[0] <= link,
      shares: [all - task, task, Math.max(0, 1 - all)],
      is_outside: port.ranges.some(([name, min, max]) => at[name] < min || at[name] > max),
    };
  };

  const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));
  const agrees = (known) => {
    const found = answer(asked.ports[known.port], known);
    const numbers = ["cycles", "pps", "shares"].every((name) => known[name].every((value, i) => same(value, found[name][i])));
    return numbers && found.is_outside === known.is_outside;
  };
  if (!asked.known.every(agrees)) {
    document.getElementById("sliders-wrong").hidden = false;
    return;
  }

  const { show } = globalThis.taut;
  const panel = () => figure.querySelector(".panel");
  const scale = (text) => {
    const [, , ...numbers] = text.split(" ");
    const [min, max, from, to] = numbers.map(Number);
    return (value) => {
      const place = Math.log(Math.max(value, min) / min) / Math.log(max / min);
      return from + Math.min(1, Math.max(0, place)) * (to - from);
    };
  };
  const SVG = "http://www.w3.org/2000/svg";
  const loads = asked.sliders.find((slider) => slider.name === asked.task).values.filter((load) => load > 0);

  const draw = (question) => {
    // A copy takes the place of the panel, so that what the pointer reads is read anew.
    const moved = panel().cloneNode(true);
    const [px, py] = [scale(moved.dataset.x), scale(moved.dataset.y)];
    for (const port of asked.ports) {
      const points = loads.map((load) => [load, answer(port, { ...question, at: { ...question.at, [asked.task]: load } }).pps[0]]);
      const data = points.map(([x, y], i) => (i ? "L" : "M") + px(x).toFixed(2) + "," + py(y).toFixed(2)).join("");
      for (const path of moved.querySelectorAll("path[data-label]")) if (path.dataset.label === port.port) path.setAttribute("d", data);
    }
    moved.querySelectorAll(".at").forEach((old) => old.remove());
    const line = document.createElementNS(SVG, "line");
    const x = px(question.at[asked.task]);
    const [, , , , bottom, top] = moved.dataset.y.split(" ");
    const look = { class: "at", x1: x, x2: x, y1: bottom, y2: top, stroke: "#111", "stroke-dasharray": "2 3", "pointer-events": "none" };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
    moved.append(line);
    panel().replaceWith(moved);
  };

  const fill = (row, port, question) => {
    const found = answer(port, question);
    // A link carries what it carries.
    const between = ([, low, high], text) => (text(low) === text(high) ? "" : text(low) + " to " + text(high));
    const bare = (c) => show.cycles(c).replace(" cycles", "");
    const texts = {
      cycles: [bare(found.cycles[0]), between(found.cycles, bare)],
      pps: [show.rate(found.pps[0]), between(found.pps, show.rate)],
      binds: [found.is_processor ? "processor" : "link", ""],
      io: [show.share(found.shares[0]), ""],
      task: [show.share(found.shares[1]), ""],
      busy: [show.share(found.shares[2]), ""],
      outside: [found.is_outside ? "outside" : "inside", ""],
    };
    for (const [name, [value, beside]] of Object.entries(texts)) {
      const cell = row.querySelector(`[data-cell="${name}"]`);
      const small = Object.assign(document.createElement("small"), { textContent: beside });
      cell.replaceChildren(value, ...(beside ? [document.createElement("br"), small] : []));
    }
  };

  const ask = () => {
    const question = { at: {}, cores: 1, link_bit_s: 0 };
    for (const slider of asked.sliders) {
      const input = controls.querySelector(`[data-slider="${slider.name}"]`);
      const value = slider.values[input.value];
      if (slider.name in question) question[slider.name] = value;
      else question.at[slider.name] = value;
      controls.querySelector(`[data-output="${slider.name}"]`).textContent = slider.texts[input.value];
      input.setAttribute("aria-valuetext", slider.texts[input.value]);
    }
    asked.ports.forEach((port) => fill(document.querySelector(`tr[data-port="${port.port}"]`), port, question));
    draw(question);
  };
  controls.addEventListener("input", ask);
  controls.hidden = false;
  document.querySelectorAll(".fixed").forEach((text) => { text.hidden = true; });
  ask();
})();

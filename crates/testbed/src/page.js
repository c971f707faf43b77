"use strict";
const at = id => document.getElementById(id);
const make = (name, text, kind) => {
  const it = document.createElement(name);
  if (text !== undefined) it.textContent = text;
  if (kind) it.className = kind;
  return it;
};
let token = sessionStorage.getItem("token") || "", hours = 24, seen = null;

const two = number => String(number).padStart(2, "0");
const hour = time => two(time.getHours()) + ":" + two(time.getMinutes());
const day = time => time.getFullYear() + "-" + two(time.getMonth() + 1) + "-" + two(time.getDate());
const moment = text => {
  const time = new Date(text);
  return (day(time) === day(new Date()) ? "" : day(time) + " ") + hour(time);
};

async function ask(path) {
  const answer = await fetch("v1/" + path, { headers: { Authorization: "Bearer " + token } });
  const body = await answer.json();
  if (answer.status === 401) throw Object.assign(new Error(body.error), { isToken: true });
  if (!answer.ok) throw new Error(body.error);
  return body;
}

async function look() {
  if (!token) {
    if (at("entry").hidden) enter("");
    return;
  }
  try {
    const [nodes, reservations, experiments] = await Promise.all(["nodes", "reservations", "experiments"].map(ask));
    seen = { nodes, reservations, experiments };
    at("trouble").textContent = "";
    at("entry").hidden = true;
    at("shown").hidden = false;
    draw();
  } catch (error) {
    if (error.isToken) return enter(error.message);
    at("trouble").textContent = "taut lab does not reply: " + error.message;
  }
}

function enter(reason) {
  token = "";
  sessionStorage.removeItem("token");
  at("trouble").textContent = reason;
  at("shown").hidden = true;
  if (!at("entry").hidden) return;
  at("entry").hidden = false;
  at("token").focus();
}

function draw() {
  const { nodes, experiments } = seen;
  const now = new Date();
  at("clock").textContent = day(now) + " " + hour(now);
  const of = (...states) => experiments.filter(it => states.includes(it.state));
  at("calendar").replaceChildren(calendar(now));
  const running = of("running"), waiting = of("waiting");
  at("running-count").textContent = running.length ? "(" + running.length + ")" : "(none)";
  at("queue-count").textContent = waiting.length ? "(" + waiting.length + ")" : "(empty)";
  at("running").replaceChildren(...running.map(card));
  at("queue").replaceChildren(...waiting.map(row));
  at("ended").replaceChildren(...of("finished", "failed", "cancelled").reverse().slice(0, 50).map(row));
  at("nodes").replaceChildren(...nodes.map(node => {
    const tr = make("tr");
    const state = make("td", node.state, { free: "good", running: "so", reserved: "so" }[node.state] || "bad");
    if (node.user) state.append(make("span", " " + node.user + " until " + moment(node.until), "soft"));
    const properties = Object.entries(node.properties).map(([name, value]) => name + " " + (typeof value === "string" ? value : JSON.stringify(value)));
    tr.append(make("td", node.name), state, make("td", node.at, "soft"), make("td", node.cores === null ? "" : node.cores + " cores"), make("td", properties.join(", "), "soft"));
    return tr;
  }));
}

function card(experiment) {
  const it = make("div", undefined, "card");
  it.append(make("strong", "#" + experiment.id + " " + experiment.title), make("div", experiment.user + " on " + [...experiment.nodes].join(", ") +
    ", since " + moment(experiment.started), "soft"));
  const progress = experiment.progress;
  if (progress) {
    const bar = make("progress");
    bar.max = progress.planned || 1;
    bar.value = progress.done;
    bar.setAttribute("aria-label", "Progress of experiment " + experiment.id);
    const parts = [progress.done + " of " + progress.planned + " runs"];
    if (progress.failed) parts.push(progress.failed + " failed");
    if (progress.making.length) parts.push("now " + progress.making.slice(0, 4).join(", "));
    const line = make("div");
    line.append(bar, " " + parts.join("; "));
    it.append(line);
  }
  if (experiment.reason) it.append(make("div", experiment.reason, "so"));
  return it;
}

function row(experiment) {
  const tr = make("tr");
  const what = make("td", experiment.title);
  if (experiment.reason) what.append(make("div", experiment.reason, "soft"));
  const kind = { finished: "good", failed: "bad" }[experiment.state] || "so";
  const state = experiment.progress ? experiment.state + ", " + experiment.progress.done + " of " + experiment.progress.planned : experiment.state;
  const when = experiment.ended ? moment(experiment.ended) : experiment.expected ? "by " + moment(experiment.expected) : "";
  tr.append(make("td", "#" + experiment.id), what, make("td", experiment.user), make("td", [...experiment.nodes].join(", "), "soft"),
    make("td", state, kind), make("td", when));
  return tr;
}

// Draws nodes by time: reservations, experiments that run, and those that wait, each at its latest time.
function calendar(now) {
  const { nodes, reservations, experiments } = seen;
  const wide = Math.max(280, Math.min(1300, document.documentElement.clientWidth - 30)), high = 26, top = 22;
  const names = nodes.map(it => it.name);
  const left = Math.min(wide / 3, 12 + 7 * Math.max(3, ...names.map(it => it.length)));
  const from = now.getTime() - hours * 3600e3 / 12, to = from + hours * 3600e3;
  const x = time => left + (Math.max(from, Math.min(to, time)) - from) / (to - from) * (wide - left - 4);
  const part = (name, attributes, text) => {
    const it = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
    if (text) it.textContent = text;
    return it;
  };
  const svg = part("svg", { viewBox: "0 0 " + wide + " " + (top + names.length * high + 6), role: "img", "aria-label": "Nodes by time" });
  const step = 3600e3 * ({ 6: 1, 24: 3, 168: 24 }[hours]) * (wide < 500 ? 2 : 1);
  const first = new Date(from);
  first.setHours(0, 0, 0, 0);
  for (let tick = first.getTime(); tick <= to; tick += step) {
    if (tick < from) continue;
    svg.append(part("line", { x1: x(tick), x2: x(tick), y1: top - 4, y2: top + names.length * high }));
    const label = hours > 24 ? day(new Date(tick)).slice(5) : hour(new Date(tick));
    if (x(tick) < wide - 34) svg.append(part("text", { x: x(tick) + 2, y: 12, class: "tick" }, label));
  }
  names.forEach((name, number) => {
    const y = top + number * high;
    svg.append(part("line", { x1: 0, x2: wide, y1: y + high, y2: y + high }), part("text", { x: 0, y: y + 17 }, name));
  });
  const box = (kind, nodes, begin, end, text) => {
    for (const name of nodes) {
      const number = names.indexOf(name), x1 = x(begin), width = x(end) - x1;
      if (number < 0 || width <= 0) continue;
      const inset = kind === "running" ? 7 : 3, y = top + number * high;
      const it = part("g", {});
      it.append(part("title", {}, text + ", " + moment(begin) + " to " + moment(end)),
        part("rect", { x: x1, y: y + inset, width: Math.max(2, width), height: high - 2 * inset, rx: 3, class: kind }));
      if (width > 7 * text.length + 8) it.append(part("text", { x: x1 + 5, y: y + 17, class: kind === "planned" ? "wait" : "in" }, text));
      svg.append(it);
    }
  };
  for (const it of reservations) box("reserved", it.nodes, Date.parse(it.from), Date.parse(it.until), it.user);
  for (const it of experiments) {
    const text = "#" + it.id + " " + it.user;
    if (it.state === "running") {
      const begin = Date.parse(it.started);
      box("running", it.nodes, begin, Math.max(begin + it.longest_s * 1000, now.getTime()), text);
    } else if (it.state === "waiting" && it.expected) {
      const begin = Date.parse(it.expected);
      box("planned", it.nodes, begin, begin + it.longest_s * 1000, text);
    }
  }
  svg.append(part("line", { x1: x(now.getTime()), x2: x(now.getTime()), y1: top - 6, y2: top + names.length * high, class: "now" }));
  return svg;
}

at("entry").addEventListener("submit", event => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  sessionStorage.setItem("token", token);
  look();
});
at("leave").addEventListener("click", () => enter(""));
for (const button of document.querySelectorAll("[data-hours]")) {
  button.addEventListener("click", () => {
    hours = Number(button.dataset.hours);
    for (const other of document.querySelectorAll("[data-hours]")) other.setAttribute("aria-pressed", other === button);
    if (seen) draw();
  });
}
addEventListener("resize", () => seen && !at("shown").hidden && draw());
// Calls `does` repeatedly, with a pause of `time` ms after each call.
async function again(does, time) {
  await does();
  setTimeout(again, time, does, time);
}
again(look, 2000);

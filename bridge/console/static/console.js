// The console's script: forms as JSON, charts, copying, and the switch for live parts.
"use strict";

// -- Forms are sent as JSON, which another web page cannot send.

htmx.defineExtension("json-fields", {
  onEvent(name, event) {
    if (name === "htmx:configRequest" && event.detail.verb === "post") {
      event.detail.headers["Content-Type"] = "application/json";
    }
    return true;
  },
  encodeParameters(request, parameters) {
    const fields = {};
    parameters.forEach((value, name) => {
      fields[name] = name in fields ? fields[name] + "\n" + value : String(value);
    });
    return JSON.stringify(fields);
  },
});

// A form that asks before it changes something does not ask when it only shows the command.
document.body.addEventListener("htmx:confirm", (event) => {
  const button = event.detail.triggeringEvent?.submitter;
  if (!event.detail.question || button?.name !== "preview") return;
  event.preventDefault();
  event.detail.issueRequest(true);
});

// -- Live parts are loaded again, unless the switch is off, the page is hidden, or somebody is at work in the part.

const SWITCH = "duolog-live";
const live = document.getElementById("live-switch");
const lost = document.getElementById("lost");
try {
  live.checked = localStorage.getItem(SWITCH) !== "off";
} catch { /* the browser keeps nothing for this page */ }
live.addEventListener("change", () => {
  try {
    localStorage.setItem(SWITCH, live.checked ? "on" : "off");
  } catch { /* the switch holds for this page only */ }
});

function isAtWorkIn(part) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return true;
  return part.contains(document.activeElement) && !document.activeElement.id;
}

// Details stay open, and scrolled regions where they are: those of the same summary and the same label. A tail gets
// only new messages, the newest first; those before stay behind them.
const TAIL_ROWS = 500;
let shown = { open: [], scrolled: [], rows: [] };
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target;
  shown = {
    open: [...part.querySelectorAll("details[open] > summary[id]")].map((each) => each.id),
    scrolled: [...part.querySelectorAll(".scroll")].map((each) => [each.ariaLabel, each.scrollLeft, each.scrollTop]),
    rows: [...part.querySelectorAll(".tail > li")],
  };
});
document.body.addEventListener("htmx:afterSwap", () => {
  const tail = document.querySelector("#live-part .tail");
  tail?.append(...shown.rows.slice(0, Math.max(0, TAIL_ROWS - tail.children.length)));
  for (const id of shown.open) {
    const details = document.getElementById(id)?.parentElement;
    if (!details) continue;
    details.open = true;
    if (details.matches(".figures")) writeFigures(details);
  }
  for (const [label, left, top] of shown.scrolled) {
    document.querySelector(`#live-part .scroll[aria-label="${CSS.escape(label)}"]`)?.scrollTo(left, top);
  }
});

document.body.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.detail.elt;
  if (!part.classList.contains("refresh")) return;
  const cause = event.detail.requestConfig.triggeringEvent;
  const isOwn = cause && cause.type === "changed";
  if (!isOwn && (document.hidden || !live.checked || isAtWorkIn(part))) event.preventDefault();
});

document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.requestConfig.verb !== "get") return;
  const isGood = event.detail.xhr.status === 200;
  event.detail.shouldSwap = isGood;
  lost.hidden = isGood;
  lost.textContent = `What is shown is old: the broker answers status ${event.detail.xhr.status}.`;
});
// A button may be gone after its action. The next Tab then goes on in the content, not at the top of the page.
document.body.addEventListener("htmx:afterSettle", () => {
  if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true });
});
document.body.addEventListener("htmx:sendError", () => {
  lost.hidden = false;
  lost.textContent = "What is shown is old: the broker does not answer.";
});

// -- Cells of cards say the heads of their columns. The style shows it where rows are cards.

function labelCards() {
  for (const table of document.querySelectorAll("table.cards")) {
    const heads = [...table.tHead.rows[0].cells].map((each) => each.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => { if (heads[at]) cell.dataset.label = heads[at]; });
    }
  }
}
document.body.addEventListener("htmx:afterSettle", labelCards);
labelCards();

// -- Results of actions and copying

document.body.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("close")) {
    button.closest(".notice").remove();
    document.getElementById("main").focus();
  }
  if (button.dataset.copy !== undefined) {
    const before = button.textContent;
    button.textContent = (await copied(button.dataset.copy)) ? "Copied" : "Not copied; select the text";
    setTimeout(() => { button.textContent = before; }, 2000);
  }
});

document.body.addEventListener("change", (event) => {
  if (!event.target.classList.contains("all")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) {
    box.checked = event.target.checked;
  }
});

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);  // Only on https and localhost.
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// -- Charts

const COLOURS = ["--link", "--bad", "--good", "--dim"];
const TIME_PX = 75; // A time with seconds is about 60 pixels wide.
const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function timeTicks(plot, ticks, axis, space, step) {
  return ticks.map((each) => {
    const text = new Date(each * 1000).toISOString();
    return step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
  });
}

// For one time, uPlot would show years.
function timeRange(plot, low, high) {
  const times = plot.data[0];
  return times.length === 1 ? [times[0] - 60, times[0] + 60] : [low, high];
}

function chartOf(place) {
  const found = JSON.parse(place.dataset.chart);
  found.x ??= JSON.parse(place.closest("[data-x]").dataset.x);
  return found;
}

function draw(place) {
  const found = chartOf(place);
  const axis = { stroke: colour("--text"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const series = found.series.map((each, at) => ({
    label: each.label,
    stroke: colour(COLOURS[at % COLOURS.length]),
    width: found.kind === "bars" ? 1 : 2,
    dash: at > 0 && found.kind !== "bars" ? [6, 2 * at] : undefined,
    fill: found.kind === "bars" ? colour("--heat3") : undefined,
    paths: found.kind === "bars" ? uPlot.paths.bars({ size: [0.9, 60] }) : undefined,
    points: { show: found.x.length === 1 },
    spanGaps: false,
  }));
  const options = {
    width: Math.max(200, place.clientWidth),
    height: 220,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { range: timeRange }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
    axes: [{ ...axis, values: timeTicks, space: TIME_PX }, { ...axis, size: 65, values: (_, ticks) => ticks.map((each) => each === null ? "" : each.toLocaleString("en")) }],
    series: [{ label: "time (UTC)", value: (_, each) => each == null ? "-" : new Date(each * 1000).toISOString().slice(0, 19) }, ...series],
    legend: { live: true },
  };
  place.replaceChildren();
  drawn.set(place, new uPlot(options, [found.x, ...found.series.map((each) => each.values)], place));
}

function drawAll() {
  for (const [place, plot] of drawn) {
    if (!place.isConnected) {
      plot.destroy();
      drawn.delete(place);
    }
  }
  for (const place of document.querySelectorAll(".chart")) if (!drawn.has(place)) draw(place);
}

// Figures are written when they are opened, because a chart has hundreds: every n-th, so that there are few.

const FIGURES_MAX = 60;

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function writeFigures(details) {
  const found = chartOf(details.previousElementSibling);
  const step = Math.ceil(found.x.length / FIGURES_MAX);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(element("th", "time (UTC)"), ...found.series.map((each) => element("th", each.label, "n")));
  for (const cell of head.cells) cell.scope = "col";
  const body = table.createTBody();
  for (let at = found.x.length - 1; at >= 0; at -= step) {
    const time = new Date(found.x[at] * 1000).toISOString().slice(0, 19);
    body.insertRow().append(
      element("td", time), ...found.series.map((each) => element("td", each.values[at] ?? "-", "n")));
  }
  const note = step > 1 ? [element("p", `One of ${step} figures is shown, the newest first.`, "dim")] : [];
  details.querySelector(".scroll").replaceChildren(...note, table);
}
document.body.addEventListener("toggle", (event) => {
  if (event.target.matches("details.figures[open]")) writeFigures(event.target);
}, true);

function drawAgain() {
  for (const [place, plot] of drawn) {
    plot.destroy();
    drawn.delete(place);
  }
  drawAll();
}

let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(drawAgain, 150);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
document.body.addEventListener("htmx:afterSettle", drawAll);
drawAll();

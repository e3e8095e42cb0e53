// The charts of `gpugate history --html`: one for each case, drawn when it comes near the window, and a table of its values.
// The filter stands in the address: #case=PART&machine=NAME&show=ms.
"use strict";

const { machines } = window.gpugateTrends;
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]; // Okabe and Ito
const ON_DARK = ["#5AB4F0", "#FF9A5C", "#3CC9A0", "#E8A5C8", "#F0BD4F", "#8FD0FF"];
const DASHES = [[1, 0], [8, 3], [2, 3], [8, 3, 2, 3], [5, 5], [12, 4]]; // of machines, beside the colour
const TITLES = { speedup: "speedup", ms: "ms per step", kernel_ms: "GPU work, ms per step", cpu_ms: "CPU time, ms per step" };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const form = document.getElementById("filter");
const fields = ["case", "machine", "show"].map((name) => document.getElementById(name));
const sections = [...document.querySelectorAll("section.case")];

function readFilter() {
  const given = new URLSearchParams(location.hash.slice(1));
  return { case: given.get("case") || "", machine: given.get("machine") || "", show: Object.hasOwn(TITLES, given.get("show")) ? given.get("show") : "speedup" };
}

function writeFilter() {
  const given = new URLSearchParams();
  const values = fields.map((field) => field.value);
  if (values[0]) given.set("case", values[0]);
  if (values[1]) given.set("machine", values[1]);
  if (values[2] !== "speedup") given.set("show", values[2]);
  history.replaceState(null, "", `#${given}`);
  apply();
}

// The points of a case on one machine: a night each.
function pointsOf(machine, name) {
  const series = machine.cases[name];
  if (!series) return [];
  const levels = new Map(series.level_changes.map((one) => [one.night, one.words]));
  const edited = new Set(series.source_changed);
  return series.nights.map((number, index) => {
    const { started_at, version, changed } = machine.nights[number];
    const clock = started_at.slice(0, 16); // on the clock of the machine that measured
    const recorded = series.recorded_speedup?.[index]?.[0] ?? null;
    const before = number > 0 ? machine.nights[number - 1].version : version;
    const point = { machine: machine.machine, night: clock.replace("T", " "), time: Date.parse(`${clock}Z`), version, recorded };
    for (const value of Object.keys(TITLES)) {
      const found = series[value === "ms" ? "optimized_ms" : value]?.[index];
      if (!found) continue; // a night without this item of the bill
      [point[value], point[`${value}_low`] = found[0], point[`${value}_high`] = found[0]] = found;
    }
    point.change = [...changed, edited.has(number) ? "the workload's source changed" : ""].filter(Boolean).join("; ");
    point.commit = version !== before ? `commit ${before} -> ${version}` : "";
    point.level = levels.get(number) || "";
    return point;
  });
}

function valuesOf(name, machine) {
  return machines.filter((one) => !machine || one.machine === machine).flatMap((one) => pointsOf(one, name));
}

function write(value) {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(4);
}

function specOf(name, values, show) {
  const names = machines.map((machine) => machine.machine);
  const shown = names.filter((one) => values.some((point) => point.machine === one));
  const palette = dark.matches ? ON_DARK : COLOURS;
  const scale = { domain: shown, range: shown.map((one) => palette[names.indexOf(one) % palette.length]) };
  const dashes = { domain: shown, range: shown.map((one) => DASHES[names.indexOf(one) % DASHES.length]) };
  const legend = shown.length > 1 ? { orient: "top", title: null, symbolStrokeWidth: 3, labelLimit: 300, columns: innerWidth < 720 ? 1 : 0 } : null;
  // Vega's own labels have 12 hours: 21:38 would be 09:38, beside a table that has 21:38.
  const labelExpr = "utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M') : datum.label";
  const x = { field: "time", type: "temporal", scale: { type: "utc" }, axis: { title: null, grid: false, labelFlush: true, labelExpr, tickCount: { expr: "max(2, width / 120)" } } };
  const y = (field) => ({ field, type: "quantitative", scale: { zero: false }, title: TITLES[show], axis: { tickCount: 5 } });
  const color = { field: "machine", type: "nominal", scale, legend };
  const text = (field, title) => ({ field, type: "nominal", title });
  const layer = [
    { mark: { type: "area", opacity: 0.22 }, encoding: { x, y: y(`${show}_low`), y2: { field: `${show}_high` }, color } },
    { mark: { type: "line", strokeWidth: 1.5 }, encoding: { x, y: y(show), color, strokeDash: { field: "machine", type: "nominal", scale: dashes, legend } } },
    { transform: [{ filter: "datum.level" }], mark: { type: "rule", strokeWidth: 1.5 }, encoding: { x, color } },
    { transform: [{ filter: "datum.level" }], mark: { type: "point", shape: "diamond", filled: true, size: 90, opacity: 1 },
      encoding: { x, y: { value: 5 }, color, tooltip: [text("level", "level"), text("night", "night"), text("machine", "machine")] } },
    { transform: [{ filter: "datum.commit" }], mark: { type: "tick", orient: "vertical", size: 7, opacity: 0.8 }, encoding: { x, y: { value: "height" }, color } },
    { transform: [{ filter: "datum.change" }], mark: { type: "point", shape: "triangle-up", filled: true, size: 80, opacity: 1 },
      encoding: { x, y: { value: 168 }, color, tooltip: [text("change", "changed"), text("night", "night"), text("machine", "machine")] } },
    { mark: { type: "point", filled: true, size: values.length > 60 ? 60 : 22, opacity: values.length > 60 ? 0 : 1 },
      encoding: { x, y: y(show), color,
        tooltip: [text("night", "night"), text("version", "version"), text("label", show), text("recorded", "recorded"), text("machine", "machine"), text("commit", "commit"), text("change", "changed")] } },
  ];
  if (show === "speedup" && values.some((point) => point.recorded)) {
    layer.splice(1, 0, { mark: { type: "line", interpolate: "step-after", strokeDash: [3, 3], strokeWidth: 1.2 }, encoding: { x, y: y("recorded"), color } });
  }
  for (const one of layer) one.mark.aria = false; // the table has every value
  return { description: `${TITLES[show]} of ${name} by night, with its interval`, width: "container", height: 180, autosize: { type: "fit-x", contains: "padding" }, data: { values }, layer };
}

function configOf() {
  const style = getComputedStyle(document.documentElement);
  const [soft, line, font] = [style.getPropertyValue("--soft"), style.getPropertyValue("--line"), getComputedStyle(document.body).fontFamily];
  return {
    background: "transparent", font, view: { stroke: null },
    axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal" },
    legend: { labelColor: soft, titleColor: soft, labelFontSize: 12 },
  };
}

// The same values as a table, for a reader of tables and for one who copies them.
function tableOf(name, values) {
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `values of ${name}`);
  const table = box.appendChild(document.createElement("table"));
  table.createCaption().textContent = `${name}: every value of the chart`;
  const head = table.createTHead().insertRow();
  for (const words of ["night", "machine", "version", "speedup", "interval", "recorded", "ms per step", "interval", "GPU work", "CPU time", "changes"]) {
    const cell = head.appendChild(document.createElement("th"));
    cell.scope = "col";
    cell.textContent = words;
  }
  const body = table.createTBody();
  for (const one of [...values].sort((first, second) => second.time - first.time)) {
    const row = body.insertRow();
    const cells = [one.machine, one.version, write(one.speedup), `${write(one.speedup_low)}..${write(one.speedup_high)}`,
      one.recorded ? write(one.recorded) : "", write(one.ms), `${write(one.ms_low)}..${write(one.ms_high)}`,
      ...[one.kernel_ms, one.cpu_ms].map((ms) => (ms === undefined ? "" : write(ms))),
      [one.level, one.change, one.commit].filter(Boolean).join("; ")];
    const first = row.appendChild(document.createElement("th"));
    first.scope = "row";
    first.textContent = one.night;
    for (const words of cells) row.insertCell().textContent = words;
  }
  return box;
}

async function draw(section) {
  const name = section.dataset.case;
  const filter = readFilter();
  const values = valuesOf(name, filter.machine).filter((one) => one[filter.show] !== undefined);
  for (const one of values) one.label = `${write(one[filter.show])} (${write(one[`${filter.show}_low`])}..${write(one[`${filter.show}_high`])})`;
  let chart = section.querySelector(".chart");
  if (!chart) {
    chart = section.appendChild(document.createElement("div"));
    chart.className = "chart";
    const details = section.appendChild(document.createElement("details"));
    details.appendChild(document.createElement("summary")).textContent = "The values as a table";
    details.addEventListener("toggle", () => fill(section));
  }
  section.dataset.drawn = JSON.stringify([filter.machine, filter.show, dark.matches]);
  fill(section);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: configOf() };
  section.view?.finalize();
  section.view = await vegaEmbed(chart, specOf(name, values, filter.show), options);
  performance.mark("drawn");
}

function fill(section) {
  const details = section.querySelector("details");
  details.querySelector(".wide")?.remove();
  if (details.open) details.appendChild(tableOf(section.dataset.case, valuesOf(section.dataset.case, readFilter().machine)));
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.near = entry.isIntersecting;
    drawIfNeeded(entry.target);
  }
}, { rootMargin: "200px" });

function drawIfNeeded(section) {
  const { machine, show } = readFilter();
  const wanted = JSON.stringify([machine, show, dark.matches]);
  if (section.near && !section.hidden && section.dataset.drawn !== wanted) draw(section);
}

function apply() {
  const filter = readFilter();
  fields.forEach((field) => { field.value = filter[field.id]; });
  const part = filter.case.toLowerCase();
  let shown = 0;
  for (const section of sections) {
    const rows = [...section.querySelectorAll("tr[data-machine]")];
    for (const row of rows) row.hidden = Boolean(filter.machine) && row.dataset.machine !== filter.machine;
    section.hidden = !section.dataset.case.toLowerCase().includes(part) || rows.every((row) => row.hidden);
    shown += section.hidden ? 0 : 1;
    drawIfNeeded(section);
  }
  document.getElementById("count").textContent = `${shown} of ${sections.length} cases`;
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
for (const field of fields) field.addEventListener("input", writeFilter);
window.addEventListener("hashchange", apply);
dark.addEventListener("change", apply);
apply();
for (const section of sections) near.observe(section);

// A card for each chart panel: title, what it shows, legend with values, the drawing (uPlot), and the same numbers as a table.
/* global uPlot */
import { clockTime, make, shown, table } from "./parts.js";

const COLOURS = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 210;

function colour(number) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--c${number % COLOURS}`).trim();
}

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export class ChartCard {
  constructor(panel) {
    this.panel = panel;
    this.rows = [];
    const id = `panel-${panel.name}`;
    this.legend = make("ul", { class: "legend" });
    this.chart = make("div", { class: "chart", role: "img" });
    this.scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${panel.title}: numbers` });
    this.details = make("details", {}, make("summary", {}, "Numbers", make("span", { class: "unseen" }, ` of ${panel.title}`)), this.scroll);
    this.details.addEventListener("toggle", () => this.fillTable());
    this.element = make("section", { class: "card", "aria-labelledby": id },
      make("h2", { id }, panel.title), make("p", { class: "quiet" }, panel.shows), this.legend, this.chart, this.details);
    new ResizeObserver(() => this.plot?.setSize({ width: this.chart.clientWidth, height: HEIGHT })).observe(this.chart);
  }

  names() {
    const all = this.rows.length ? Object.keys(this.rows[0]).filter((name) => name !== this.panel.x) : [];
    const band = this.panel.band;
    return all.filter((name) => name !== `${band} low` && name !== `${band} high`);
  }

  show(rows) {
    const text = JSON.stringify(rows);
    if (text === this.text) return;
    this.text = text;
    this.rows = rows;
    this.draw();
    this.fillTable();
  }

  xText(value) {
    return this.panel.x === "time" ? clockTime(value) : String(value);
  }

  fillTable() {
    if (!this.details.open) return;
    const { x, unit, title } = this.panel;
    const names = this.rows.length ? Object.keys(this.rows[0]).filter((name) => name !== x) : [];
    const columns = [{ name: x, text: true, cell: (row) => this.xText(row[x]) }, ...names.map((name) => ({ name, unit }))];
    this.scroll.replaceChildren(table(title, columns, this.rows));
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    this.chart.replaceChildren();
    const names = this.names();
    this.chart.classList.toggle("empty", this.rows.length === 0);
    this.details.hidden = this.rows.length === 0;
    if (this.rows.length === 0) {
      this.legend.replaceChildren();
      this.chart.append(make("p", { class: "quiet" }, "Nothing yet."));
      this.chart.setAttribute("aria-label", `${this.panel.title}: nothing yet`);
      return;
    }
    const { x, band } = this.panel;
    const stacked = this.panel.kind === "stacked";
    const xs = this.rows.map((row) => row[x]);
    let columns = names.map((name) => this.rows.map((row) => row[name] ?? null));
    if (stacked) columns = columns.map((_, at) => xs.map((__, row) => columns.slice(0, at + 1).reduce((sum, one) => sum + (one[row] ?? 0), 0)));
    const order = names.map((_, at) => at);
    if (stacked) order.reverse(); // the whole first, its parts over it
    const series = order.map((at) => this.series(names[at], at));
    const data = [xs, ...order.map((at) => columns[at])];
    const bands = [];
    if (band) {
      for (const side of ["high", "low"]) {
        data.push(this.rows.map((row) => row[`${band} ${side}`]));
        series.push({ stroke: "transparent", points: { show: false } });
      }
      bands.push({ series: [data.length - 2, data.length - 1], fill: `${colour(0)}33` });
    }
    this.plot = new uPlot({
      width: this.chart.clientWidth, height: HEIGHT, bands,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: !stacked } },
      scales: { x: { time: x === "time", range: this.range(xs) }, y: { range: (_, low, high) => this.valueRange(low, high) } },
      axes: [this.axis(x === "time" ? 46 : 28, x === "time" ? undefined : (_, splits) => splits.map((at) => (Number.isInteger(at) ? String(at) : ""))),
        this.axis(56, (_, splits) => splits.map((at) => this.tick(at)))],
      series: [{}, ...series],
      hooks: { setCursor: [(plot) => this.fillLegend(plot.cursor.idx)] },
    }, data, this.chart);
    this.fillLegend(null);
  }

  series(name, at) {
    const stroke = colour(at);
    if (this.panel.kind === "stacked") {
      return { label: name, stroke, fill: stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 40], align: 0 }) };
    }
    const points = { show: this.panel.kind === "points" || this.rows.length < 30, size: this.panel.kind === "points" ? 9 : 5, fill: stroke };
    return { label: name, stroke, width: 2, dash: DASHES[at % DASHES.length], points, spanGaps: true };
  }

  axis(size, values) {
    return { stroke: token("quiet"), grid: { stroke: token("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui", size, values };
  }

  tick(at) {
    return this.panel.unit === "share" ? `${Math.round(100 * at)} %` : String(Math.round(1000 * at) / 1000).replace("-", "−");
  }

  range(xs) {
    if (this.panel.x === "time") return undefined;
    const room = this.panel.kind === "stacked" ? 0.6 : 0.3;
    return [xs[0] - room, xs[xs.length - 1] + room];
  }

  valueRange(low, high) {
    if (this.panel.unit === "share") return [0, 1.02];
    if (low === null || high === null) return [0, 1];
    const room = 0.08 * (high - low || 1);
    return [low >= 0 ? 0 : low - room, high <= 0 ? 0 : high + room];
  }

  fillLegend(index) {
    const at = index ?? this.rows.length - 1;
    const row = this.rows[at];
    const { x, unit, title, kind } = this.panel;
    const items = this.names().map((name, number) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      line.setAttribute("viewBox", "0 0 24 10");
      line.setAttribute("aria-hidden", "true");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
      stroke.setAttribute("d", "M0 5H24");
      stroke.setAttribute("stroke", colour(number));
      stroke.setAttribute("stroke-width", kind === "stacked" ? "10" : "3");
      if (kind !== "stacked") stroke.setAttribute("stroke-dasharray", DASHES[number % DASHES.length].join(" "));
      line.append(stroke);
      const error = name === this.panel.band && row[`${name} high`] != null ? ` ± ${(row[`${name} high`] - row[name]).toFixed(3)}` : "";
      return make("li", {}, line, `${name} `, make("b", {}, shown(row[name] ?? (kind === "stacked" ? 0 : null), unit) + error));
    });
    this.legend.replaceChildren(make("li", { class: "quiet" }, `${x} ${this.xText(row[x])}:`), ...items);
    if (index === null) {
      const values = this.names().map((name) => `${name} ${shown(row[name], unit)}`).join(", ");
      const span = `${this.xText(this.rows[0][x])} to ${this.xText(row[x])}`;
      this.chart.setAttribute("aria-label", `${title}: ${this.rows.length} points over ${x} ${span}; the last: ${values}`);
    }
  }
}

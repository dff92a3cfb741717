// Elements, numbers and tables. Text only ever enters the page as text: nothing here parses markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function shown(value, unit = "") {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  if (unit === "return") return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
  return Number.isInteger(value) ? String(value) : value.toFixed(Math.abs(value) < 10 ? 2 : 1);
}

export function clockTime(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString();
}

// columns: [{name, unit, cell(row) -> node or text}]
export function table(caption, columns, rows) {
  const numeric = (column) => rows.some((row) => typeof row[column.name] === "number") && !column.text;
  const head = columns.map((column) => make("th", { scope: "col", class: numeric(column) ? "number" : "" }, column.label ?? column.name));
  const body = rows.map((row) =>
    make("tr", {}, ...columns.map((column) => {
      const content = column.cell ? column.cell(row) : shown(row[column.name], column.unit);
      const kind = numeric(column) ? "number" : typeof content === "string" && content.length > 40 ? "long" : "";
      return make("td", { class: kind }, content);
    })));
  return make("table", {}, make("caption", {}, make("span", { class: "unseen" }, caption)), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

export function pairs(entries) {
  return make("dl", {}, ...entries.filter(([, value]) => value !== undefined && value !== "").flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, value instanceof Node ? value : shown(value))]));
}

export async function ask(path, values = {}, tag = "") {
  const query = new URLSearchParams(values);
  const answer = await fetch(`${path}?${query}`, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
  if (answer.status === 304) return null;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `the server answered ${answer.status}`);
  return { body, tag: answer.headers.get("etag") ?? "" };
}

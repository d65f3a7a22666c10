const facts = JSON.parse(document.getElementById("facts").textContent);
const Draw = window.Plotly || window.moduleName;
const main = document.getElementById("main");
const names = facts.clients.map((client) => client.name);
const everyone = names.map((_, client) => client);
const local = facts.methods.find((method) => method.method === "local");
const fedavg = facts.methods.find((method) => method.method === "fedavg");
const own = facts.methods.find((method) => method.method === facts.method);
const GROUPS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8c8c8c"];

/** Names are other people's words: Plotly reads some of HTML, so they are told apart from it. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const title = (method) => facts.titles[method] || method;
const known = (value) => value !== null && value !== undefined;
/** One end of an estimate; none where a client has no test examples, or a figure that is not finite. */
const endOf = (estimate, end) => (estimate ? estimate[end] : null);
const sum = (values) => values.reduce((total, value) => total + value, 0);

const figure = (value, signed = false) => {
  if (!known(value)) return "–";
  const text = facts.is_share ? (100 * value).toFixed(1) : Number(value.toPrecision(signed ? 2 : 3)).toString();
  const rounded = Number(text) === 0 ? text.replace("-", "") : text;
  return (signed && Number(text) >= 0 ? "+" : "") + rounded.replace("-", "−");
};
/** A difference with its interval, whose middle it need not be. */
const withInterval = (estimate) => {
  const [value, low, high] = [estimate.value, estimate.low, estimate.high].map((end) => figure(end, true));
  return known(estimate.low) ? `${value} [${low}, ${high}]` : value;
};
const unit = facts.is_share ? " %" : "";
const points = facts.is_share ? " points" : "";
const shown = (value) => (known(value) ? (facts.is_share ? 100 * value : value) : null);
const bytes = (number) => {
  for (const [size, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (number >= size) return `${(number / size).toFixed(number / size < 10 ? 1 : 0)} ${name}`;
  }
  return `${number} B`;
};
const percent = (share) => `${Math.round(100 * share)} %`;

/** Make an element; children are elements or words, and words are never read as HTML. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && known(value)) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(known));
  return element;
}

function tableOf(columns, rows, attributes = {}) {
  const cell = (value, k) => el("td", { class: typeof value === "string" && value.length > 32 ? "words" : null, "data-label": columns[k] },
    value instanceof Node ? value : known(value) ? String(value) : "");
  return el("table", attributes,
    el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))));
}

function section(id, heading, about) {
  const made = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, heading),
    about ? el("p", { class: "about" }, about) : null);
  main.append(made);
  return made;
}

function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
const quoted = (value) => {
  const text = known(value) ? String(value) : "";
  return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const asCsv = ({ columns, rows }) => [columns, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
const asJson = ({ columns, rows }) =>
  JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((column, k) => [column, known(row[k]) ? row[k] : null]))), null, 1);
const saveCsv = (chart) => save(`${chart.id}.csv`, "text/csv", asCsv(chart.data()));
const saveJson = (chart) => save(`${chart.id}.json`, "application/json", asJson(chart.data()));

const charts = [];
/** Add a chart: `traces()` and `layout()` draw it, `data()` is the same as a table, for those who cannot see it. */
function addChart(parent, chart) {
  chart.plot = el("div", { class: "plot", id: `plot-${chart.id}`, role: "img", "aria-label": chart.label });
  chart.holder = chart.scrolls ? el("div", { class: "scroll" }, chart.plot) : chart.plot;
  const rows = el("div", { class: "scroll" });
  const details = el("details", { ontoggle: () => details.open && fill() }, el("summary", {}, "The numbers"), rows);
  const fill = () => {
    const data = chart.data();
    rows.replaceChildren(tableOf(data.columns, data.rows.slice(0, 500).map((row) => row.map(short))),
      data.rows.length > 500 ? el("p", {}, `The first 500 of ${data.rows.length} rows; the files hold all.`) : "");
  };
  chart.refill = () => details.open && fill();
  details.append(el("div", { class: "buttons" },
    el("button", { type: "button", onclick: () => saveCsv(chart) }, "CSV"),
    el("button", { type: "button", onclick: () => saveJson(chart) }, "JSON")));
  const caption = el("figcaption", {}, chart.title ? el("h3", {}, chart.title) : null,
    chart.about ? el("p", { class: "about" }, chart.about) : null);
  chart.fault = el("p", { class: "note", role: "alert", hidden: true });
  chart.figure = el("figure", {}, caption, ...(chart.before || []), chart.fault, chart.holder, details);
  parent.append(chart.figure);
  charts.push(chart);
  return chart;
}
const short = (value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const methodColour = (method) => colour(method === facts.method ? "own" : method in { local: 1, fedavg: 1 } ? method : "muted");
const diverging = () => [[0, colour("low")], [0.5, colour("mid")], [1, colour("high")]];
const sequential = () => [[0, colour("mid")], [1, colour("high")]];

let printing = false;
/** What all charts share: type, colours of the theme, room for labels. */
function frameOf({ printed = 1, ...layout }) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, fixedrange: true };
  const axes = Object.fromEntries(Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(([name, own]) => [name, { ...axis, ...own }]));
  return {
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif", size: 13, color: colour("ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 14, t: 10, b: 10 },
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" }, dragmode: false, xaxis: axis, yaxis: axis,
    ...layout, ...axes, ...(printing ? { width: 680 * printed } : { autosize: true }),
  };
}
/** Draw a chart; one that fails says so in its place, and leaves the others alone. */
function draw(chart) {
  if (!chart.isReady) return;
  chart.figure.hidden = Boolean(chart.has) && !chart.has(); // nothing is drawn that has no data behind it
  if (chart.figure.hidden) return;
  chart.fault.hidden = true;
  chart.holder.hidden = false;
  try {
    Draw.react(chart.plot, chart.traces(), frameOf(chart.layout()), { displayModeBar: false, responsive: !printing, staticPlot: printing })
      .catch((error) => tellFault(chart, error));
    chart.refill();
  } catch (error) {
    tellFault(chart, error);
  }
}
function tellFault(chart, error) {
  console.error(`chart ${chart.id}:`, error);
  chart.fault.textContent = `This chart could not be drawn (${error}). Its numbers are below, and in the files at the end of the page.`;
  chart.fault.hidden = false;
  chart.holder.hidden = true;
}
const drawAll = () => charts.forEach(draw);
/** Draw from the top, and let the reader scroll meanwhile. */
function drawInTurn(waiting, done) {
  if (!waiting.length) return done();
  const [chart, ...rest] = waiting;
  makeReady(chart);
  return setTimeout(() => drawInTurn(rest, done), 0);
}
function makeReady(chart) {
  if (chart.isReady) return;
  chart.isReady = true;
  draw(chart);
  if (!chart.clicked || !chart.plot.on) return; // a plot that could not be drawn cannot be clicked on
  chart.plot.on("plotly_click", (event) => {
    const chosen = chart.clicked(event.points[0]);
    if (known(chosen)) selectClient(chosen);
  });
}

const state = { client: 0, listeners: [] };
const onClient = (listener) => state.listeners.push(listener);
function selectClient(client) {
  state.client = client;
  state.listeners.forEach((listener) => listener(client));
  remember();
}
/** The chosen client is kept in the address, so that a page that is rewritten during a run stays where it was. */
function remember() {
  if (state.ready) history.replaceState(null, "", `#client=${state.client}`);
}

/** What went wrong, and how to get the same again. */
function addHealth() {
  const { fell_back, took_part, refused, reasons, dropped_out, notes } = facts.health;
  const made = section("health", "Problems", null);
  const most = 10;
  const told = notes.length > most ? [...notes.slice(0, most), `and ${notes.length - most} more notes, in the run's environment.json`] : notes;
  made.append(el("ul", {}, [
    ["kept their model in some round: neither training nor a received model lowered their loss", fell_back], ["had uploads refused", refused], ["did not answer in some round", dropped_out],
  ].map(([words, counts]) => el("li", {}, `${counts.filter((count) => count).length} of ${names.length} ${facts.word}s ${words}`)), told.map((note) => el("li", {}, note))));
  const odd = everyone.filter((client) => fell_back[client] || refused[client] || dropped_out[client] || (known(facts.clients[client].validation) && facts.clients[client].validation < 10));
  if (!odd.length) return;
  const why = reasons.some((reason) => reason);
  const columns = ["client", "took part", "kept its model", "refused", "no answer", "validation examples", ...(why ? ["why refused"] : [])];
  const rows = odd.map((client) => [names[client], took_part[client], fell_back[client], refused[client], dropped_out[client], facts.clients[client].validation, ...(why ? [reasons[client]] : [])]);
  const table = { id: "health", data: () => ({ columns, rows }) };
  made.append(el("details", { open: rows.length <= 20 }, el("summary", {}, `By ${facts.word}: ${rows.length}`), el("div", { class: "scroll-x" }, tableOf(columns, rows, { class: "stack" })),
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => saveCsv(table) }, "CSV"), el("button", { type: "button", onclick: () => saveJson(table) }, "JSON"))));
}

function addReproduce() {
  const { command, config, hashes, versions } = facts.reproduce;
  const made = section("reproduce", command ? "Reproduce" : "Files and figures", command ? "The same configuration gives the same log, byte for byte." : null);
  const copied = el("span", { role: "status" });
  const copy = () => navigator.clipboard.writeText(command).then(() => { copied.textContent = "copied"; }, () => { copied.textContent = "the browser does not allow it: select and copy"; });
  if (command) made.append(el("pre", { id: "command" }, command), el("div", { class: "buttons" }, el("button", { type: "button", onclick: copy }, "Copy the command"), copied));
  if (config) made.append(el("details", {}, el("summary", {}, "The whole configuration"), el("pre", {}, config), el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => save("config.toml", "text/plain", config) }, "config.toml"))));
  const prints = el("details", {}, el("summary", {}, "Hashes and versions"), el("div", { class: "scroll-x" }, tableOf(["what", "SHA-256"], Object.entries(hashes)), tableOf(["library", "version"], Object.entries(versions))));
  const files = el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => save("report.json", "application/json", JSON.stringify(facts)) }, "Everything as JSON"),
    charts.flatMap((chart) => [el("button", { type: "button", onclick: () => saveCsv(chart) }, `${chart.id}.csv`), el("button", { type: "button", onclick: () => saveJson(chart) }, `${chart.id}.json`)]));
  made.append(prints, el("details", {}, el("summary", {}, "The data of every chart"), files));
}

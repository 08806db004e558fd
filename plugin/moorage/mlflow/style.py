"""The report's style sheet: system fonts, colours that can be told apart without hue, light and dark."""

STYLE = """
:root { --ground:#fff; --ink:#1b1f24; --dim:#5d6672; --line:#d9dee5; --soft:#f3f5f8;
  --busy:#2563eb; --overhead:#f59e0b; --lost:#dc2626; --idle:#94a3b8; --unknown:#c4b5fd; --unknown-line:#6d28d9;
  --held:#bfdbfe; --good:#15803d; }
@media (prefers-color-scheme: dark) { :root { --ground:#14171b; --ink:#e6e9ee; --dim:#9aa4b2; --line:#323943;
  --soft:#1d2228; --busy:#60a5fa; --overhead:#fbbf24; --lost:#f87171; --idle:#64748b; --unknown:#4c3d80;
  --unknown-line:#c4b5fd; --held:#1e3a5f; --good:#4ade80; } }
* { box-sizing:border-box }
body { margin:0; background:var(--ground); color:var(--ink); font:14px/1.45 system-ui,sans-serif }
main { max-width:1100px; margin:0 auto; padding:20px }
h1 { font-size:20px; margin:0 } h2 { font-size:15px; margin:26px 0 8px }
p { margin:4px 0 } .dim { color:var(--dim) }
.badge { font-size:12px; font-weight:600; padding:2px 9px; border-radius:10px; border:1px solid currentColor;
  vertical-align:3px; color:var(--dim) }
.badge.succeeded { color:var(--good) } .badge.failed { color:var(--lost) }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(130px,1fr)); gap:8px; margin:16px 0 0 }
.tiles div { background:var(--soft); border-radius:8px; padding:9px 12px; display:flex; flex-direction:column;
  justify-content:space-between }
.tiles dt { color:var(--dim); font-size:12px } .tiles dd { margin:0; font-size:20px; font-weight:600;
  font-variant-numeric:tabular-nums }
.split { display:flex; height:18px; border-radius:5px; overflow:hidden; gap:1px; margin-bottom:8px;
  background:var(--soft) }
.split span { min-width:2px }
.split .busy,.key.busy { background:var(--busy) } .split .overhead,.key.overhead { background:var(--overhead) }
.split .lost,.key.lost { background:var(--lost) } .split .idle,.key.idle { background:var(--idle) }
.split .unknown,.key.unknown { background:repeating-linear-gradient(45deg,var(--unknown) 0 4px,
  var(--unknown-line) 4px 5px) }
.key { display:inline-block; width:11px; height:11px; border-radius:2px; margin-right:7px }
.wide { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:13px }
th { text-align:left; color:var(--dim); font-weight:500 }
th,td { padding:4px 14px 4px 0; border-bottom:1px solid var(--line); vertical-align:top }
th:not(:last-child),td:not(:last-child) { white-space:nowrap } th:last-child { width:99% }
.n { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
svg { width:100%; min-width:640px; height:auto; display:block; font:11px system-ui,sans-serif }
svg text { fill:var(--ink) } svg .dim { fill:var(--dim) }
svg .grid { stroke:var(--line) } svg .axis { stroke:var(--dim) }
svg .held { fill:var(--held); stroke:var(--busy); stroke-width:1 }
svg .busy { fill:var(--busy) } svg .overhead { fill:var(--overhead) } svg .lost { fill:var(--lost) }
svg .idle { fill:var(--idle) } svg .unknown { fill:url(#hatch) }
svg .unknown-ground { fill:var(--unknown) } svg .unknown-line { stroke:var(--unknown-line); stroke-width:2 }
svg .phase { fill:var(--overhead); opacity:.55 } svg .phase.training { fill:var(--busy); opacity:.35 }
svg .phase.done { fill:var(--good); opacity:.4 }
svg .mark polyline { fill:none; stroke:var(--dim); stroke-dasharray:3 2 }
svg .mark circle { fill:var(--ground); stroke:var(--dim) }
svg .mark.lost polyline, svg .mark.lost circle, svg .mark.retried circle { stroke:var(--lost) }
svg .mark.lost { fill:none } svg .mark.notice circle { stroke:var(--overhead); stroke-width:2 }
.marks { columns:2; column-gap:32px; padding-left:26px; margin:8px 0; font-size:13px }
.marks li { break-inside:avoid; margin-bottom:3px }
@media (max-width:700px) { .marks { columns:1 } }
"""

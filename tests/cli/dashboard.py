"""The dashboard of examples/monitoring, and the queries of its panels."""

from __future__ import annotations

import json

from tests import ROOT

MONITORING = ROOT / "examples" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]

"""The conformance kit: runs the promises of the contract against any scheduler or executor, over the network.

Scenarios are data (`scenarios/`, one file each; README.md beside this package has the format); this package reads them,
plays the other side, and judges with rules of its own, which share nothing with the services under test.
"""

from __future__ import annotations

from metronome_conformance.report import Result, Verdict, junit_xml
from metronome_conformance.scenario import Scenario, ScenarioError, load_scenarios

__all__ = ["Result", "Scenario", "ScenarioError", "Verdict", "junit_xml", "load_scenarios"]

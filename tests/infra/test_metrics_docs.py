"""docs/metrics.md names the metrics that the roles register: all of them, and no others."""

import re
from pathlib import Path

import leyden.infra.deadletters
import leyden.producers.gateway.metrics
import leyden.producers.runner.metrics
from leyden.learner.metrics import LearnerMetrics
from leyden.serving.metrics import PromoterMetrics, ReloaderMetrics
from leyden.stream.metrics import StreamMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name as scraped -> (type, labels)."""
    registry = CollectorRegistry()
    made = [LearnerMetrics(registry), ReloaderMetrics(registry), PromoterMetrics(registry)]
    made += [StreamMetrics("assemble", registry), StreamMetrics("group", registry)]
    modules = (leyden.infra.deadletters, leyden.producers.gateway.metrics, leyden.producers.runner.metrics)
    found = [value for module in modules for value in vars(module).values()]
    found += [getattr(one, name) for one in made for name in dir(one)]
    return dict(_described(metric) for metric in found if isinstance(metric, Counter | Gauge | Histogram))


def _described(metric: MetricWrapperBase) -> tuple[str, tuple[str, tuple[str, ...]]]:
    name = f"{metric._name}_total" if isinstance(metric, Counter) else metric._name
    return name, (str(metric._type), tuple(metric._labelnames))


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The same, read from the tables."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `leyden_"):
            continue
        for name, labels in re.findall(r"`(leyden_\w+)(?:\{([\w,]+)\})?`", cells[0]):
            found[name] = (cells[1], tuple(labels.split(",")) if labels else ())
    return found


def test_the_docs_name_every_metric_with_its_type_and_labels_and_no_other() -> None:
    assert documented() == registered()


def test_names_say_their_unit() -> None:
    for name, (kind, _) in registered().items():
        if kind == "counter":
            assert name.endswith("_total"), name
        elif kind == "histogram":
            assert name.endswith("_seconds"), name

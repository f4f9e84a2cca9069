"""The results of rounds and their evaluation: medians, ratios, goals. Pure code: it runs nothing and prints nothing."""

from dataclasses import dataclass, field
from statistics import median
from typing import Callable, List, Optional, Tuple


# If the device changed by more than this factor between the two rounds of a pair, their ratio reflects the device as much as the systems.
DEVICE_MOVED_MAX = 2.0


class Missing(Exception):
    """A peer or a round that is not available, with the reason."""


@dataclass(frozen=True)
class Figures:
    """One round: messages per second, and their latency: until the acknowledgement, or from the due time to the arrival."""

    per_second: float
    p50_us: float
    p99_us: float


def rate(figures: Figures) -> float:
    return figures.per_second


def promptness(figures: Figures) -> float:
    """The merit of a latency: half the p99 is twice the merit."""
    return 1e6 / max(figures.p99_us, 1.0)


@dataclass(frozen=True)
class Contender:
    """One system under one load. `is_equal` means that it syncs before it acknowledges, like Whimbrel.

    `merit` is what the load compares: more is better.
    """

    system: str
    durability: str
    connections: str
    measure: Callable[[float], Figures]
    is_equal: bool = True
    merit: Callable[[Figures], float] = rate


@dataclass
class Standing:
    """The results of one contender: its rounds, and for each the round of Whimbrel that followed it."""

    contender: Contender
    rounds: List[Figures] = field(default_factory=list)
    whimbrel_after: List[Figures] = field(default_factory=list)
    # For each pair, the ratio of the device's median sync times before the two rounds.
    device_moved: List[float] = field(default_factory=list)
    missing: Optional[str] = None

    def ratios(self) -> List[float]:
        """Whimbrel's merit relative to the peer's, for each pair of adjacent rounds: changes of the device affect both."""
        merit = self.contender.merit
        return [merit(ours) / merit(peer) for peer, ours in zip(self.rounds, self.whimbrel_after)]


@dataclass(frozen=True)
class Goal:
    """Whimbrel's merit must be at least `at_least` times that of this system under this load."""

    load: str
    system: str
    at_least: float
    # The goal in words, if it is not a rate.
    words: str = ""

    @property
    def wanted(self) -> str:
        return f"{self.load}: {self.words or f'at least {self.at_least:g}× {self.system}'}"

    def judge(self, standings: List[Standing]) -> List[Tuple[str, str, str, str]]:
        """For each mode of the system: the mode, the figure, the change of the device between adjacent rounds, and the
        verdict."""
        return [self.judge_one(each) for each in standings if self.concerns(each.contender)]

    def concerns(self, contender: Contender) -> bool:
        return contender.system == self.system and contender.is_equal

    def judge_one(self, standing: Standing) -> Tuple[str, str, str, str]:
        way, ratios = standing.contender.connections, standing.ratios()
        if not ratios:
            return way, "missing" if standing.missing else "", "", "not measured"
        moved = max(standing.device_moved, default=1.0)
        verdict = "met" if median(ratios) >= self.at_least else "missed"
        if moved > DEVICE_MOVED_MAX:
            verdict += ", on an unsteady device"
        return way, shown_ratio(ratios), f"{moved:.1f}×", verdict


def middle(rounds: List[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return Figures(
        median(each.per_second for each in rounds),
        median(each.p50_us for each in rounds),
        median(each.p99_us for each in rounds),
    )


def requests_for(seconds: float, per_second: float, at_least: int) -> int:
    """The number of requests that keep a generator busy for about this time, for generators that count requests."""
    return max(at_least, int(seconds * per_second))


def shown_rate(per_second: float) -> str:
    return f"{per_second:,.0f}".replace(",", " ")


def shown_time(micros: float) -> str:
    return f"{micros:.0f} µs" if micros < 1000 else f"{micros / 1000:.2f} ms"


def shown_ratio(ratios: List[float]) -> str:
    """The median, and the range if there was more than one pair."""
    if not ratios:
        return ""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}×"
    return f"{median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"


def table(head: List[str], rows: List[List[str]]) -> str:
    """A Markdown table with aligned columns, readable in a terminal."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)

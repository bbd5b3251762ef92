"""Word problems of one or two steps with random names, things and numbers."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

NAMES = (
    "Anna Ben Carla David Emma Farid Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul Rosa Sam Tina Umar".split()  # noqa: SIM905
)
THINGS = "apples pens books coins stamps marbles cards shells eggs bricks candles tickets".split()  # noqa: SIM905


class WordProblem(TypedDict):
    """One task."""

    question: str
    answer: int
    kind: str


Numbers = tuple[int, int, int]


def _sum(r: random.Random) -> Numbers:
    return r.randint(12, 499), r.randint(12, 499), 0


def _difference(r: random.Random) -> Numbers:
    a = r.randint(100, 900)
    return a, r.randint(12, a - 10), 0


def _product(r: random.Random) -> Numbers:
    return r.randint(12, 99), r.randint(3, 60), 0


def _quotient(r: random.Random) -> Numbers:
    b, quotient = r.randint(3, 40), r.randint(4, 60)
    return b * quotient, b, 0


def _product_and_rest(r: random.Random) -> Numbers:
    a, b = r.randint(11, 60), r.randint(3, 30)
    return a, b, r.randint(5, a * b - 1 if a * b < 99 else 99)


def _gain_and_loss(r: random.Random) -> Numbers:
    a, b = r.randint(50, 400), r.randint(12, 200)
    return a, b, r.randint(11, a)


def _two_losses(r: random.Random) -> Numbers:
    b, c = r.randint(11, 99), r.randint(11, 99)
    return b + c + r.randint(20, 400), b, c


KINDS: dict[str, tuple[Callable[[random.Random], Numbers], Callable[[int, int, int], int]]] = {
    "+": (_sum, lambda a, b, c: a + b),
    "-": (_difference, lambda a, b, c: a - b),
    "*": (_product, lambda a, b, c: a * b),
    "/": (_quotient, lambda a, b, c: a // b),
    "*+": (_product_and_rest, lambda a, b, c: a * b + c),
    "*-": (_product_and_rest, lambda a, b, c: a * b - c),
    "+-": (_gain_and_loss, lambda a, b, c: a + b - c),
    "--": (_two_losses, lambda a, b, c: a - b - c),
}
"""Kind to (how its numbers are drawn, what the answer is)."""


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to ask; {n} is a name, {t} a thing, {a} {b} {c} the numbers."""

    kind: str
    text: str


TRAINED = (
    Wording("+", "{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?"),
    Wording("+", "A shop sold {a} {t} on Monday and {b} {t} on Tuesday. How many {t} were sold in total?"),
    Wording("+", "{n} drove {a} km before lunch and {b} km after lunch. How far did {n} drive?"),
    Wording("+", "There are {a} red {t} and {b} blue {t}. How many {t} are there altogether?"),
    Wording("-", "{n} had {a} {t} and gave away {b}. How many {t} are left?"),
    Wording("-", "A book has {a} pages and {n} has read {b} of them. How many pages remain?"),
    Wording("-", "A tank holds {a} liters. {b} liters leak out. How many liters are still in the tank?"),
    Wording("-", "{n} has {a} dollars and spends {b} dollars. How much money is left?"),
    Wording("*", "{n} buys {a} boxes with {b} {t} in each box. How many {t} is that?"),
    Wording("*", "A hall has {a} rows of {b} seats. How many seats are there?"),
    Wording("*", "{n} earns {a} dollars an hour and works {b} hours. How many dollars does {n} earn?"),
    Wording("*", "Each of {a} children gets {b} {t}. How many {t} are needed?"),
    Wording("/", "{n} shares {a} {t} equally among {b} friends. How many {t} does each friend get?"),
    Wording("/", "{a} {t} are packed into bags of {b}. How many bags are filled?"),
    Wording("/", "A rope of {a} meters is cut into {b} equal pieces. How long is each piece?"),
    Wording("/", "{n} reads {b} pages a day. How many days does a book of {a} pages take?"),
    Wording("*+", "{n} buys {a} boxes with {b} {t} in each box and finds {c} more {t}. How many {t} does {n} have?"),
    Wording("*-", "{n} saves {a} dollars a week for {b} weeks and then spends {c} dollars. How many dollars are left?"),
    Wording("+-", "{n} has {a} {t}, buys {b} more and then loses {c}. How many {t} are left?"),
    Wording("--", "A shop has {a} {t}. It sells {b} in the morning and {c} in the afternoon. How many {t} are left?"),
)
UNSEEN = (
    Wording("*+", "A farmer fills {a} crates with {b} {t} each and has {c} {t} left over. How many {t} are there?"),
    Wording(
        "+-", "A bus line had {a} riders, then gained {b} riders and lost {c} riders. How many riders are there now?"
    ),
    Wording("+", "{n} collected {a} {t} last year and {b} {t} this year. What is the total number of {t}?"),
    Wording("-", "A farmer had {a} {t} and sold {b} of them. How many {t} does the farmer still have?"),
    Wording("*", "A truck carries {a} crates and every crate holds {b} {t}. How many {t} are in the truck?"),
    Wording("/", "{a} {t} are divided equally between {b} teams. How many {t} does each team receive?"),
)


def generate(seed: str, n: int, wordings: tuple[Wording, ...]) -> list[WordProblem]:
    """`n` problems; the same seed gives the same ones."""
    return [_problem(random.Random(f"{seed}-{i}"), wordings) for i in range(n)]


def _problem(r: random.Random, wordings: tuple[Wording, ...]) -> WordProblem:
    wording = r.choice(wordings)
    draw, solve = KINDS[wording.kind]
    a, b, c = draw(r)
    question = wording.text.format(n=r.choice(NAMES), t=r.choice(THINGS), a=a, b=b, c=c)
    return {"question": question, "answer": solve(a, b, c), "kind": wording.kind}

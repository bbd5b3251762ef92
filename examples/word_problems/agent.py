"""An agent that solves word problems: it asks a model, runs the calculator that the model calls, and asks again."""

import ast
import operator
import re

from openai import OpenAI

MAX_CALLS = 4
MESSAGES = [
    {"role": "system", "content": "Use the calculator."},
    {"role": "user", "content": "Eve has 90 coins and spends 25. How many coins are left?"},
    {"role": "assistant", "content": "calculator(90-25)"},
    {"role": "tool", "content": "65", "tool_call_id": "1"},
    {"role": "assistant", "content": "Answer: 65"},
    {"role": "user", "content": "Tom has 3 bags of 8 figs and 5 more. How many figs is that?"},
    {"role": "assistant", "content": "calculator(3*8+5)"},
    {"role": "tool", "content": "29", "tool_call_id": "2"},
    {"role": "assistant", "content": "Answer: 29"},
]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

client = OpenAI()


def solve(question: str, model: str) -> str:
    """The model's last reply: `Answer: N` where it has understood how to work."""
    messages = [*MESSAGES, {"role": "user", "content": question}]
    reply = ""
    for _ in range(MAX_CALLS):
        completion = client.chat.completions.create(
            model=model,
            messages=messages,  # pyright: ignore[reportArgumentType]
            temperature=1.0,
            max_tokens=24,
            stop=["\n"],
        )
        reply = completion.choices[0].message.content or ""
        call = re.fullmatch(r"\s*calculator\((.*)\)\s*", reply)
        if call is None:
            break
        try:
            result = calculate(call[1])
        except (ValueError, SyntaxError, ArithmeticError):
            break
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "tool", "content": result, "tool_call_id": str(len(messages))},
        ]
    return reply


def calculate(expression: str) -> str:
    """The value of + - * / and parentheses; whole numbers without a point, others with two digits behind it."""
    if len(expression) > 60:
        raise ValueError("too long for this calculator")
    value = _value(ast.parse(expression.strip(), mode="eval").body)
    return (str(round(value)) if abs(value - round(value)) < 1e-9 else f"{value:.2f}")[:12]


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("not for a calculator")

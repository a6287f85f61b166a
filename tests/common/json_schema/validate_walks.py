#!/usr/bin/env python3
"""Random JSON schemas, judged by a public validator: validate_walks.py SCHEMA_WALKER TOKENIZER_JSON [COUNT]

Every text that a schema's masks let be drawn must be a valid value, and every valid value that is made together with a
schema must be among its texts. Exits with 77, which ctest shows as skipped, without the package jsonschema.
"""
import json
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("no Python package jsonschema: skipped")
    sys.exit(77)

WORDS = ["a", "name", "the \"key\"", "é", "日本", "x/y", "tab\t", "", "ab", "abc", "-", "0"]


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def any_value(rng, depth=2):
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.randrange(-1000, 1000)
    if kind == 3:
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice([0.5, -2.25, 1e30])
    if kind == 5:
        return [any_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: any_value(rng, depth - 1) for name in rng.sample(WORDS, rng.randrange(3))}


class Maker:
    """Makes a schema together with a function that makes valid values of it."""

    def __init__(self, rng):
        self.rng = rng
        self.defs = {}

    def schema(self, depth):
        makers = [self.string, self.integer, self.number, self.enum, self.simple]
        if depth:
            makers += [self.object, self.object, self.object, self.array, self.any_of, self.all_of, self.reference]
        schema, value = self.rng.choice(makers)(depth)
        if isinstance(schema, dict) and self.rng.random() < 0.2:
            schema = {"description": "what it is", **schema}
        return schema, value

    def simple(self, _):
        return self.rng.choice([
            ({"type": "boolean"}, lambda: self.rng.random() < 0.5),
            ({"type": "null"}, lambda: None),
            ({"type": ["null", "integer"]}, lambda: self.rng.choice([None, 7])),
            ({}, lambda: any_value(self.rng)),
            (True, lambda: any_value(self.rng)),
        ])

    def string(self, _):
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return {"type": "string"}, lambda: rng.choice(WORDS)
        if kind == 1:
            low, more = rng.randrange(4), rng.randrange(4)
            return ({"type": "string", "minLength": low, "maxLength": low + more},
                    lambda: "".join(rng.choice("ab\"é\n日") for _ in range(low + rng.randint(0, more))))
        if kind == 2:
            pattern, values = rng.choice([
                ("^[a-z]{2,4}$", ["ab", "zzzz"]), ("^(yes|no)!?$", ["yes", "no!"]), ("\\d", ["a1", "7\n"]),
                ("^\"[^\"]*\"$", ["\"\"", "\"a\\\""]), ("^a.c", ["abc", "aécd"])])
            return {"type": "string", "pattern": pattern}, lambda: rng.choice(values)
        name, values = rng.choice([
            ("date", ["2024-02-29", "1999-12-31"]), ("date-time", ["2024-06-30T23:59:59Z"]),
            ("uuid", ["123e4567-e89b-12d3-a456-426614174000"]), ("ipv4", ["127.0.0.1"]),
            ("email", ["a@example.org"])])
        return {"type": "string", "format": name}, lambda: rng.choice(values)

    def bounds(self, schema):
        rng = self.rng
        low = rng.randrange(-300, 300)
        high = low + rng.randrange(2, 500)
        if rng.random() < 0.7:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.7:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = high
        return low + 1, high - 1

    def integer(self, _):
        schema = {"type": "integer"}
        low, high = self.bounds(schema)
        return schema, lambda: self.rng.randint(low, high)

    def number(self, _):
        schema = {"type": "number"}
        low, high = self.bounds(schema)
        return schema, lambda: self.rng.choice([self.rng.randint(low, high), low + 0.25 * self.rng.randrange(4 * (high - low) + 1)])

    def enum(self, _):
        values = [any_value(self.rng, 1) for _ in range(self.rng.randrange(1, 5))]
        if self.rng.random() < 0.3:
            return {"const": values[0]}, lambda: values[0]
        return {"enum": values}, lambda: self.rng.choice(values)

    def object(self, depth):
        rng = self.rng
        names = rng.sample(WORDS, rng.randrange(5))
        properties = {name: self.schema(depth - 1) for name in names}
        required = [name for name in names if rng.random() < 0.5]
        schema = {"type": "object", "properties": {name: made[0] for name, made in properties.items()}}
        if required:
            schema["required"] = required
        additional = rng.choice([None, False, False, "schema"])
        more = None
        if additional is False:
            schema["additionalProperties"] = False
        elif additional == "schema":
            schema["additionalProperties"], more = self.schema(depth - 1)

        def value():
            made = {name: properties[name][1]() for name in names if name in required or rng.random() < 0.5}
            if additional is None and rng.random() < 0.3:
                made["other"] = any_value(rng, 1)
            if more and rng.random() < 0.5:
                made["nam"] = more()
            return made

        return schema, value

    def array(self, depth):
        rng = self.rng
        items, item = self.schema(depth - 1)
        low, more = rng.randrange(3), rng.randrange(4)
        schema = {"type": "array", "items": items}
        if rng.random() < 0.6:
            schema["minItems"] = low
        if rng.random() < 0.6:
            schema["maxItems"] = low + more
        if rng.random() < 0.3:
            first, first_value = self.schema(depth - 1)
            schema["prefixItems"] = [first]

            def value():
                count = low + rng.randint(0, more)
                return ([first_value()] + [item() for _ in range(count - 1)]) if count else []

            return schema, value
        return schema, lambda: [item() for _ in range(low + rng.randint(0, more))]

    def any_of(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]
        return {"anyOf": [part[0] for part in parts]}, lambda: self.rng.choice(parts)[1]()

    def all_of(self, depth):
        rng = self.rng
        first, first_value = self.schema(depth - 1)
        second, second_value = self.schema(depth - 1)
        parts = [{"type": "object", "properties": {"a": first}, "required": ["a"]},
                 {"properties": {"b": second}}]
        return ({"allOf": parts},
                lambda: {"a": first_value(), **({"b": second_value()} if rng.random() < 0.5 else {})})

    def reference(self, depth):
        name = f"def{len(self.defs)}"
        self.defs[name] = True
        schema, value = self.schema(depth - 1)
        if self.rng.random() < 0.4:  # a list that refers to itself
            schema = {"type": "object", "properties": {"value": schema, "next": {"anyOf": [
                {"$ref": f"#/$defs/{name}"}, {"type": "null"}]}}, "required": ["value", "next"],
                "additionalProperties": False}
            inner = value

            def value():
                return {"value": inner(), "next": {"value": inner(), "next": None} if self.rng.random() < 0.5 else None}

        self.defs[name] = schema
        return {"$ref": f"#/$defs/{name}"}, value


def main():
    walker = subprocess.Popen([sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    walks = unfinished = texts = failures = 0
    for seed in range(count):
        rng = random.Random(seed)
        maker = Maker(rng)
        schema, make_value = maker.schema(3)
        if maker.defs:
            schema = {**schema, "$defs": maker.defs} if isinstance(schema, dict) else schema
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        values = [value for value in (make_value() for _ in range(4)) if validator.is_valid(value)]
        question = {"schema": schema, "texts": [compact(value) for value in values]}
        walker.stdin.write(json.dumps(question) + "\n")
        walker.stdin.flush()
        answer = json.loads(walker.stdout.readline())

        def fail(what):
            nonlocal failures
            failures += 1
            print(f"seed {seed}: {what}\n  schema {json.dumps(schema, ensure_ascii=False)}")

        if "error" in answer:
            # What two schemas together cannot say, and what nothing can be valid under.
            known = ["for the same value", "that no value has", "no text matches", "no schema of several", "beside keywords",
                     "together are not supported", "may not have so many", "within the bounds", "is below", "is allowed"]
            if not any(text in answer["error"] for text in known):
                fail(answer["error"])
            continue
        for text in answer["walks"]:
            if text is None:
                unfinished += 1
                continue
            walks += 1
            try:
                value = json.loads(text)
            except ValueError as error:
                fail(f"{text!r} is not JSON: {error}")
                continue
            for error in list(validator.iter_errors(value))[:1]:
                fail(f"{text!r} is not valid: {error.message}")
        for text, accepted in zip(question["texts"], answer["accepted"]):
            texts += 1
            if not accepted:
                fail(f"{text!r} is valid but not among the texts")
    print(f"{count} schemas: {walks} drawn texts, {unfinished} without an end, {texts} valid texts, {failures} failures")
    return 1 if failures or walks < 2 * count or unfinished * 50 > walks else 0


sys.exit(main())

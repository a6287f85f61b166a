"""An OpenTelemetry collector as small as a test needs: it takes OTLP/HTTP in JSON and keeps the spans."""

import http.server
import json
import threading


def value_of(value):
    (kind, content), = value.items()
    if kind == "arrayValue":
        return [value_of(each) for each in content["values"]]
    return int(content) if kind == "intValue" else content


def attributes_of(attributes):
    return {each["key"]: value_of(each["value"]) for each in attributes}


class Span:
    def __init__(self, resource, json_span):
        self.resource = resource
        self.name = json_span["name"]
        self.kind = json_span["kind"]
        self.trace_id = json_span["traceId"]
        self.span_id = json_span["spanId"]
        self.parent = json_span.get("parentSpanId")
        self.state = json_span.get("traceState")
        self.start = int(json_span["startTimeUnixNano"])
        self.end = int(json_span["endTimeUnixNano"])
        self.attributes = attributes_of(json_span["attributes"])
        self.events = [(each["name"], attributes_of(each["attributes"]), int(each["timeUnixNano"]))
                       for each in json_span.get("events", [])]
        self.failed = json_span.get("status", {}).get("code") == 2

    @property
    def service(self):
        return self.resource["service.name"]

    @property
    def rank(self):
        return self.resource["service.instance.id"]

    def __repr__(self):
        return f"{self.service}/{self.rank}: {self.name} {self.attributes} {self.events}"


class Collector:
    def __init__(self):
        self.spans = []
        self.requests = 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, self.headers["content-type"], json.loads(body))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, content_type, body):
        assert path == "/v1/traces" and content_type == "application/json", (path, content_type)
        self.requests += 1
        for of_resource in body["resourceSpans"]:
            resource = attributes_of(of_resource["resource"]["attributes"])
            for of_scope in of_resource["scopeSpans"]:
                self.spans += [Span(resource, span) for span in of_scope["spans"]]

    def of_trace(self, trace_id):
        return [span for span in self.spans if span.trace_id == trace_id]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

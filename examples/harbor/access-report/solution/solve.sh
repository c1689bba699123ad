#!/usr/bin/env python3
import collections
import json

lines = [line.split() for line in open("/app/access.log")]
report = {
    "requests": len(lines),
    "errors": sum(int(line[2]) >= 500 for line in lines),
    "slowest": max(lines, key=lambda line: int(line[3]))[1],
    "by_method": collections.Counter(line[0] for line in lines),
}
with open("/app/report.json", "w") as file:
    json.dump(report, file)

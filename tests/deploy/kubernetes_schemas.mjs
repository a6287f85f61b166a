// Checks Kubernetes objects, one JSON object a line on stdin, by the public schemas of the npm packages kubernetes-models and
// @kubernetes-models/prometheus-operator. Prints what does not fit.
import { readFileSync } from "node:fs";

let wrong = 0;
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const object = JSON.parse(line);
  const packages = object.apiVersion.startsWith("monitoring.coreos.com/")
    ? "@kubernetes-models/prometheus-operator" : "kubernetes-models";
  const kinds = await import(`${packages}/${object.apiVersion}`);
  try {
    new kinds[object.kind](object).validate();
  } catch (error) {
    console.log(`${object.kind} ${object.metadata.name}: ${error.message}`);
    wrong = 1;
  }
}
process.exit(wrong);

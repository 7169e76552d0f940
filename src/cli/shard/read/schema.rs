//! The fields of a custom kind by which an object refers to another namespace.
//!
//! Hides the shape of OpenAPI schemas. Does not know which kinds are meant.

use serde_json::{Map, Value};

/// The depth to which schemas are read. That of a pod template within a list is 12.
const MOST_DEPTH: usize = 24;
/// The most fields of one kind that are read.
const MOST_FIELDS: usize = 64;

/// A field that leads to another namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Reference {
    /// Labels select the namespaces of objects that are gathered, as in `serviceMonitorNamespaceSelector`.
    Selector {
        /// The field.
        path: String,
        /// The kind of the objects, with a small first letter.
        kind: String,
    },
    /// An object with a name and a namespace.
    Named {
        /// The field.
        path: String,
    },
}

/// The references in the `spec` of an OpenAPI v3 schema of a custom kind, each once.
pub(in crate::shard) fn references(schema: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    if let Some(spec) = schema.pointer("/properties/spec") {
        walk(spec, "spec", 0, &mut found);
    }
    found.sort();
    found.dedup();
    found
}

fn walk(schema: &Value, path: &str, depth: usize, found: &mut Vec<Reference>) {
    if depth == MOST_DEPTH || found.len() == MOST_FIELDS {
        return;
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), depth + 1, found);
    }
    if let Some(values @ Value::Object(_)) = schema.get("additionalProperties") {
        walk(values, &format!("{path}.*"), depth + 1, found);
    }
    let Some(Value::Object(fields)) = schema.get("properties") else { return };
    if is_reference(fields) && depth > 0 {
        found.push(Reference::Named { path: path.to_owned() });
    }
    for (field, inner) in fields {
        let at = format!("{path}.{field}");
        match field.strip_suffix("NamespaceSelector").filter(|kind| !kind.is_empty()) {
            Some(kind) => found.push(Reference::Selector { path: at, kind: kind.to_owned() }),
            None => walk(inner, &at, depth + 1, found),
        }
    }
}

/// Whether these are the fields of a reference. The fields of a volume's source, and of an Event, are others.
fn is_reference(fields: &Map<String, Value>) -> bool {
    let is_text = |field: &str| {
        fields.get(field).is_some_and(|schema| schema.get("type").is_some_and(|is| is == "string"))
    };
    // A dashboard's or a claim's metadata has labels next to them.
    is_text("name") && is_text("namespace") && !fields.contains_key("labels")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_of_namespaces_and_references_are_found() {
        let text = json!({"type": "string"});
        let reference = json!({"type": "object", "properties": {"name": text, "namespace": text}});
        let schema = json!({"properties": {
            "metadata": {"properties": {"name": text, "namespace": text}},
            "status": {"properties": {"ref": reference}},
            "spec": {"properties": {
                "serviceMonitorSelector": {"type": "object"},
                "serviceMonitorNamespaceSelector": {"properties": {"matchLabels": {}}},
                // As the affinity of a pod has it: within the shard's own namespace and others.
                "affinity": {"properties": {"namespaceSelector": {"type": "object"}}},
                "backends": {"type": "array", "items": {"properties": {"secretRef": reference}}},
                "byName": {"additionalProperties": reference},
                "template": {"properties": {"metadata": {"properties": {
                    "name": text, "namespace": text, "labels": {"type": "object"}}}}},
                "issuerRef": {"properties": {"name": text, "kind": text}},
            }},
        }});
        let named = |path: &str| Reference::Named { path: path.to_owned() };
        let selector = Reference::Selector {
            path: "spec.serviceMonitorNamespaceSelector".to_owned(),
            kind: "serviceMonitor".to_owned(),
        };
        let expected = [selector, named("spec.backends[].secretRef"), named("spec.byName.*")];
        assert_eq!(references(&schema), expected);
        assert_eq!(references(&json!({})), []);
    }

    #[test]
    fn bad_a_schema_that_is_deep_or_odd_ends() {
        let mut deep = json!({"properties": {"someNamespaceSelector": {}}});
        for _ in 0..200 {
            deep = json!({"properties": {"a": deep}});
        }
        assert_eq!(references(&json!({"properties": {"spec": deep}})), []);
        for odd in [json!(null), json!({"properties": 3}), json!({"properties": {"spec": [1]}})] {
            assert_eq!(references(&odd), []);
        }
    }
}

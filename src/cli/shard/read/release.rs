//! The Helm release of a workload, and the values of its chart that give the workload its fields.
//!
//! Hides how Helm stores a release (`pkg/storage/driver/util.go`), and which line of a template gives which
//! field. Does not know what the values should be.

use std::io::Read;

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::read::GzDecoder;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::yaml;

/// The largest release that is read, in bytes: a Secret has at most one mebibyte of it, compressed.
const MOST_BYTES: u64 = 64 << 20;

/// A release, by the text of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Release {
    /// Its name.
    pub(in crate::shard) name: String,
    /// The name of its chart.
    pub(in crate::shard) chart: String,
    /// The values that give the workload its fields.
    pub(in crate::shard) values: Values,
}

/// The paths of values, such as `controller.replicas`. `None` where none is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Values {
    /// The labels of the workload's pods.
    pub(in crate::shard) labels: Option<String>,
    /// Its replicas.
    pub(in crate::shard) replicas: Option<String>,
    /// Its strategy.
    pub(in crate::shard) strategy: Option<String>,
}

#[derive(Deserialize)]
struct Stored {
    name: String,
    chart: Chart,
    manifest: String,
}

#[derive(Deserialize)]
struct Chart {
    metadata: Metadata,
    #[serde(default)]
    templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    data: String,
}

/// The release in the field `release` of a Secret, and what it gives a workload of this kind and name. `None` if
/// it cannot be read.
pub(in crate::shard) fn read(field: &[u8], kind: &str, name: &str) -> Option<Release> {
    let packed = STANDARD.decode(field).ok()?;
    let mut text = Vec::new();
    match packed.starts_with(&[0x1f, 0x8b]) {
        true => GzDecoder::new(&*packed).take(MOST_BYTES).read_to_end(&mut text).ok()?,
        false => (&*packed).read_to_end(&mut text).ok()?,
    };
    let stored: Stored = serde_json::from_slice(&text).ok()?;
    let values = template(&stored, kind, name).map(|text| values(&text)).unwrap_or_default();
    Some(Release { name: stored.name, chart: stored.chart.metadata.name, values })
}

/// The template that gave the object, by the comment that Helm writes before it.
fn template(stored: &Stored, kind: &str, name: &str) -> Option<String> {
    let documents = yaml::documents(&stored.manifest);
    let gives = |document: &&String| {
        let object: Option<Value> = serde_yaml::from_str(document).ok();
        object.is_some_and(|object| {
            let is = object.pointer("/metadata/name").and_then(Value::as_str);
            object["kind"] == kind && is == Some(name)
        })
    };
    let document = documents.iter().find(gives)?;
    let source = document.lines().find_map(|line| line.strip_prefix("# Source: "))?;
    let (_, path) = source.trim().split_once('/')?;
    let file = stored.chart.templates.iter().find(|file| file.name == path)?;
    String::from_utf8(STANDARD.decode(&file.data).ok()?).ok()
}

fn values(template: &str) -> Values {
    let find = |pattern: &str| {
        let found = Regex::new(pattern).ok()?.captures(template)?;
        Some(found.get(1)?.as_str().to_owned())
    };
    Values {
        labels: find(r"\.Values\.([\w.]*[pP]odLabels(?:\.\w+)?)"),
        replicas: find(r"(?m)^\s*replicas:.*?\.Values\.([\w.]+)"),
        strategy: find(r"\.Values\.([\w.]*[sS]trategy)\b"),
    }
}

#[cfg(test)]
pub(in crate::shard) mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use serde_json::json;

    use super::*;

    /// A release as Helm stores it.
    pub(in crate::shard) fn stored(template: &str) -> Vec<u8> {
        let release = json!({
            "name": "cm",
            "chart": {
                "metadata": {"name": "cert-manager"},
                "templates": [
                    {"name": "templates/other.yaml", "data": STANDARD.encode("replicas: {{ .Values.no }}")},
                    {"name": "templates/deployment.yaml", "data": STANDARD.encode(template)},
                ],
            },
            "manifest": "---\n# Source: cert-manager/templates/other.yaml\nkind: Service\nmetadata:\n  \
                name: cert-manager\n---\n# Source: cert-manager/templates/deployment.yaml\n\
                apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: cert-manager\n",
        });
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(release.to_string().as_bytes()).unwrap();
        STANDARD.encode(gzip.finish().unwrap()).into_bytes()
    }

    #[test]
    fn the_values_of_a_workload_are_those_of_its_template() {
        let template = "kind: Deployment\nspec:\n  replicas: {{ .Values.controller.replicas | default 1 }}\n  \
            {{- with .Values.strategy }}\n  strategy: {{ toYaml . }}\n  {{- end }}\n  template:\n    metadata:\n      \
            labels:\n      {{- with $.Values.controller.podLabels }}{{ toYaml . }}{{ end }}\n";
        let release = read(&stored(template), "Deployment", "cert-manager").unwrap();
        let text = |text: &str| Some(text.to_owned());
        let values = Values {
            labels: text("controller.podLabels"),
            replicas: text("controller.replicas"),
            strategy: text("strategy"),
        };
        assert_eq!((&*release.name, &*release.chart), ("cm", "cert-manager"));
        assert_eq!(release.values, values);
        let other = read(&stored(template), "StatefulSet", "cert-manager").unwrap();
        assert_eq!(other.values, Values::default(), "it gives none of that kind");
    }

    #[test]
    fn bad_a_release_that_cannot_be_read_is_none() {
        for field in [&b"%"[..], b"", b"AAAA", STANDARD.encode("{}").as_bytes()] {
            assert_eq!(read(field, "Deployment", "op"), None);
        }
    }
}

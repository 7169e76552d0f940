//! A pod, parsed in the parts that injection changes and kept as JSON in all others.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::not_injected::NotInjected;

/// An object of the API with arbitrary fields.
pub(super) type JsonObject = Map<String, Value>;

const SECURITY: &str = "securityContext";

/// A pod or a pod template. [`ParsedPod::into_value`] reassembles it: empty lists and maps are left
/// out, everything else is unchanged.
#[derive(Clone, Debug)]
pub(super) struct ParsedPod {
    /// The fields next to metadata and spec.
    root: JsonObject,
    /// The metadata without the two maps below.
    metadata: JsonObject,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// The spec without the parts below.
    pub(super) spec: JsonObject,
    /// The pod's securityContext without the list below.
    pub(super) security: JsonObject,
    pub(super) sysctls: Vec<JsonObject>,
    pub(super) host_aliases: Vec<JsonObject>,
    pub(super) init_containers: Vec<Container>,
    pub(super) containers: Vec<Container>,
    pub(super) volumes: Vec<JsonObject>,
}

/// A container, with the lists that injection works on.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    /// The pod's fields but the two lists below.
    pub(super) fields: JsonObject,
    pub(super) env: Vec<JsonObject>,
    pub(super) mounts: Vec<JsonObject>,
}

impl ParsedPod {
    pub(super) fn of(pod: &Value) -> Result<Self, NotInjected> {
        let mut root = object(pod.clone(), "the pod")?;
        let mut metadata = object_if_any(root.remove("metadata"), "metadata")?;
        let mut spec = object(root.remove("spec").unwrap_or_default(), "spec")?;
        let mut security = object_if_any(spec.remove(SECURITY), "spec.securityContext")?;
        let parsed = Self {
            labels: strings(metadata.remove("labels"), "metadata.labels")?,
            annotations: strings(metadata.remove("annotations"), "metadata.annotations")?,
            init_containers: containers(&mut spec, "initContainers")?,
            containers: containers(&mut spec, "containers")?,
            volumes: objects(spec.remove("volumes"), "spec.volumes")?,
            sysctls: objects(security.remove("sysctls"), "spec.securityContext.sysctls")?,
            host_aliases: objects(spec.remove("hostAliases"), "spec.hostAliases")?,
            root,
            metadata,
            spec,
            security,
        };
        if parsed.containers.is_empty() {
            return Err(malformed("spec.containers", "a list of at least one container"));
        }
        Ok(parsed)
    }

    pub(super) fn into_value(self) -> Value {
        let Self { mut root, mut metadata, mut spec, mut security, .. } = self;
        for (key, texts) in [("labels", self.labels), ("annotations", self.annotations)] {
            let texts = texts.into_iter().map(|(key, text)| (key, Value::String(text)));
            put(&mut metadata, key, texts.collect());
        }
        put_list(&mut spec, "initContainers", self.init_containers, Container::into_value);
        put_list(&mut spec, "containers", self.containers, Container::into_value);
        put_list(&mut spec, "volumes", self.volumes, Value::Object);
        put_list(&mut spec, "hostAliases", self.host_aliases, Value::Object);
        put_list(&mut security, "sysctls", self.sysctls, Value::Object);
        put(&mut spec, SECURITY, security);
        put(&mut root, "metadata", metadata);
        root.insert("spec".to_owned(), Value::Object(spec));
        Value::Object(root)
    }

    /// Adds Secrets to `imagePullSecrets` that are not among them.
    pub(super) fn add_pull_secrets(&mut self, names: &[String]) -> Result<(), NotInjected> {
        const KEY: &str = "imagePullSecrets";
        if names.is_empty() {
            return Ok(());
        }
        let mut secrets = objects(self.spec.get(KEY).cloned(), "spec.imagePullSecrets")?;
        for name in names {
            if !secrets.iter().any(|secret| text(secret, "name") == Some(name)) {
                secrets.push(JsonObject::from_iter([("name".to_owned(), name.as_str().into())]));
            }
        }
        put_list(&mut self.spec, KEY, secrets, Value::Object);
        Ok(())
    }

    /// Every container of both lists, init containers first.
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    pub(super) fn all_containers_mut(&mut self) -> impl Iterator<Item = &mut Container> {
        self.init_containers.iter_mut().chain(&mut self.containers)
    }
}

impl Container {
    pub(super) fn new(
        name: &str,
        fields: JsonObject,
        env: Vec<JsonObject>,
        mounts: Vec<JsonObject>,
    ) -> Self {
        Self { name: name.to_owned(), fields, env, mounts }
    }

    /// Whether it is an init container that keeps running (KEP-753).
    pub(super) fn is_native_sidecar(&self) -> bool {
        self.fields.get("restartPolicy").and_then(Value::as_str) == Some("Always")
    }

    /// The user of `securityContext.runAsUser`.
    pub(super) fn user(&self) -> Option<u64> {
        self.fields.get("securityContext")?.get("runAsUser")?.as_u64()
    }

    /// The TCP ports that it declares.
    pub(super) fn tcp_ports(&self) -> impl Iterator<Item = u64> {
        let ports = self.fields.get("ports").and_then(Value::as_array).into_iter().flatten();
        ports
            .filter(|port| port.get("protocol").is_none_or(|p| p.is_null() || p == "TCP"))
            .filter_map(|port| port.get("containerPort")?.as_u64())
    }

    fn of(value: Value, field: &str) -> Result<Self, NotInjected> {
        let mut fields = object(value, field)?;
        let name = match fields.get("name") {
            Some(Value::String(name)) => name.clone(),
            _ => return Err(malformed(&format!("{field}.name"), "a string")),
        };
        Ok(Self {
            env: objects(fields.remove("env"), &format!("{field}.env"))?,
            mounts: objects(fields.remove("volumeMounts"), &format!("{field}.volumeMounts"))?,
            name,
            fields,
        })
    }

    fn into_value(self) -> Value {
        let Self { name, mut fields, env, mounts } = self;
        fields.insert("name".to_owned(), Value::String(name));
        put_list(&mut fields, "env", env, Value::Object);
        put_list(&mut fields, "volumeMounts", mounts, Value::Object);
        Value::Object(fields)
    }
}

/// An entry of the API's lists: its name, and a value under another key.
pub(super) fn named(name: &str, key: &str, value: Value) -> JsonObject {
    JsonObject::from_iter([("name".to_owned(), name.into()), (key.to_owned(), value)])
}

/// The string under `key`.
pub(super) fn text<'a>(object: &'a JsonObject, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

fn containers(spec: &mut JsonObject, key: &str) -> Result<Vec<Container>, NotInjected> {
    let field = format!("spec.{key}");
    objects(spec.remove(key), &field)?
        .into_iter()
        .enumerate()
        .map(|(at, fields)| Container::of(Value::Object(fields), &format!("{field}[{at}]")))
        .collect()
}

fn objects(value: Option<Value>, field: &str) -> Result<Vec<JsonObject>, NotInjected> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| object(item, &format!("{field}[{at}]")))
            .collect(),
        Some(_) => Err(malformed(field, "a list")),
    }
}

fn object(value: Value, field: &str) -> Result<JsonObject, NotInjected> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(malformed(field, "an object")),
    }
}

fn object_if_any(value: Option<Value>, field: &str) -> Result<JsonObject, NotInjected> {
    match value {
        None | Some(Value::Null) => Ok(JsonObject::new()),
        Some(value) => object(value, field),
    }
}

fn strings(value: Option<Value>, field: &str) -> Result<BTreeMap<String, String>, NotInjected> {
    object_if_any(value, field)?
        .into_iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            _ => Err(unquoted(format!("{field}[{key:?}]"))),
        })
        .collect()
}

/// The refusal of a text that YAML reads as another type.
pub(super) fn unquoted(field: String) -> NotInjected {
    NotInjected::Malformed { field, wanted: "a string: put it into quotes" }
}

fn malformed(field: &str, wanted: &'static str) -> NotInjected {
    NotInjected::Malformed { field: field.to_owned(), wanted }
}

fn put(into: &mut JsonObject, key: &str, object: JsonObject) {
    if !object.is_empty() {
        into.insert(key.to_owned(), Value::Object(object));
    }
}

fn put_list<T>(into: &mut JsonObject, key: &str, items: Vec<T>, value: impl Fn(T) -> Value) {
    if !items.is_empty() {
        into.insert(key.to_owned(), items.into_iter().map(value).collect());
    }
}

//! A problem of a pod or a ShardingConfig, and the Event about it.

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};

use super::{key::NotWritten, observed::namespace};
use crate::configs::name;
use ctrlmesh_api::ShardingConfig;

const COMPONENT: &str = "ctrlmesh-manager";

/// The object that an Event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// A pod, which has one Event.
    Pod,
    /// A ShardingConfig, which has one for each reason.
    Config(&'static str),
}

/// A problem, for people.
pub(super) struct Problem<'a> {
    pub(super) about: About,
    pub(super) key: &'a str,
    pub(super) uid: &'a str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// An Event to write.
pub(super) struct ProblemEvent(pub(super) Box<Event>);

impl ProblemEvent {
    /// The Event: its name is of the object's uid, so that another leader writes the same one.
    pub(super) fn new(problem: Problem<'_>, time: Timestamp, replica: &str) -> Self {
        let Problem { about, key, uid, reason, message } = problem;
        let (api_version, kind, suffix) = match about {
            About::Pod => ("v1".into(), "Pod".into(), String::new()),
            About::Config(of) => (
                ShardingConfig::api_version(&()),
                ShardingConfig::kind(&()),
                format!(".{}", of.to_ascii_lowercase()),
            ),
        };
        let namespace = namespace(key);
        let object = ObjectReference {
            api_version: Some(api_version.into_owned()),
            kind: Some(kind.into_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name(key).to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let meta = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(format!("ctrlmesh.{uid}{suffix}")),
            ..ObjectMeta::default()
        };
        Self(Box::new(Event {
            metadata: meta,
            involved_object: object,
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_timestamp: Some(Time(time)),
            count: Some(1),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(replica.to_owned()),
            ..Event::default()
        }))
    }

    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let [namespace, name] = [&self.0.metadata.namespace, &self.0.metadata.name].map(text);
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let params = PatchParams::apply(COMPONENT).force();
        api.patch(&name, &params, &Patch::Apply(&self.0)).await.map(drop)?;
        Ok(())
    }
}

//! The part of a boundary that is pushed to an API server, once it proves that it understands.
//!
//! Hides the proof: a few lists of one object for each connection and resource. A connection leads
//! to one API server, so servers of several versions behind one address are distinguished. A list
//! echoes the hashes that selected it (`metadata.shardInfo`), but those of custom resources do not:
//! there, one object must be listed by its own hash and by no other. Each object is judged here
//! too, whatever arrives.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde::Deserialize;

use super::{
    behalf::{NoAnswer, OnBehalf},
    connection::{Knowledge, Upstream},
};
use crate::{
    policy::{GroupResource, Hashes, Pushed, Share},
    proxy::{config::Pushdown, outcome::Why},
    wire::{Query, RequestInfo, selector::equal_to},
};

/// Timeout of one list of one object. The client's request waits for it, and later ones use its
/// result too.
const PATIENCE: Duration = Duration::from_secs(3);
/// The media type with the echo: neither a Table nor a list of metadata has it.
const WHOLE: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProbedList {
    #[serde(default)]
    metadata: Metadata,
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
struct ItemMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    shard_info: Option<ShardInfo>,
}

#[derive(Deserialize)]
struct ShardInfo {
    #[serde(default)]
    selector: String,
}

/// The part of the boundaries to push for a collection, and its metric label.
pub(in crate::proxy) async fn understood(
    upstream: &Upstream,
    info: &RequestInfo<'_>,
    share: &Share,
    own: OnBehalf<'_>,
) -> (Pushed, &'static str) {
    if !share.is_each() {
        return (Pushed::default(), "selector");
    }
    let mut pushed = Pushed::of(share, &info.options);
    let probe = Probe { upstream, info, own };
    if let Some(hashes) = &pushed.hashes
        && !probe.understands_hashes(hashes).await
    {
        pushed.hashes = None;
    }
    if let Some(namespace) = &pushed.namespace
        && !probe.understands_namespaces(namespace).await
    {
        pushed.namespace = None;
    }
    let how = match (&pushed.hashes, &pushed.namespace) {
        (Some(_), _) => "hash",
        (None, Some(_)) => "namespace",
        (None, None) => "none",
    };
    (pushed, how)
}

/// Requests in the name of a client's request, with its credentials.
pub(in crate::proxy) struct Probe<'a> {
    pub(in crate::proxy) upstream: &'a Upstream,
    pub(in crate::proxy) info: &'a RequestInfo<'a>,
    pub(in crate::proxy) own: OnBehalf<'a>,
}

impl Probe<'_> {
    /// Whether the API server selects this resource by hashes.
    pub(in crate::proxy) async fn understands_hashes(&self, hashes: &Hashes) -> bool {
        self.remembered(|known| &mut known.hashes, self.selects_by(hashes)).await
    }

    async fn selects_by(&self, hashes: &Hashes) -> Option<bool> {
        match self.ask(&[("shardSelector", &hashes.to_string())]).await {
            Err(NoAnswer::Ever) => Some(false),
            Err(NoAnswer::Now) => None,
            Ok(ProbedList { metadata: Metadata { shard_info: Some(info) }, .. }) => {
                Some(hashes.is_said_by(&info.selector))
            }
            Ok(answer) => {
                let is_in =
                    |Item { metadata }: &Item| hashes.has(&metadata.uid, &metadata.namespace);
                match answer.items.unwrap_or_default().iter().all(is_in) {
                    true => self.goes_by(hashes).await,
                    false => Some(false),
                }
            }
        }
    }

    /// Whether some object is listed by its own hash and by no other, or `None` if there is no
    /// object, or none any more.
    async fn goes_by(&self, hashes: &Hashes) -> Option<bool> {
        let Item { metadata } = self.ask(&[]).await.ok()?.items?.pop()?;
        let ItemMetadata { name, namespace, uid } = metadata;
        let mut fields = equal_to("metadata.name", &name);
        if !namespace.is_empty() {
            fields.push_str(&format!(",{}", equal_to("metadata.namespace", &namespace)));
        }
        let (own, others) = hashes.of_one(&uid, &namespace);
        let mut is_listed = [false; 2];
        for (hashes, is_listed) in [own, others].iter().zip(&mut is_listed) {
            let query = [("shardSelector", &*hashes.to_string()), ("fieldSelector", &fields)];
            let items = self.ask(&query).await.ok()?.items.unwrap_or_default();
            *is_listed = items.iter().any(|item| item.metadata.uid == uid);
        }
        match is_listed {
            [true, by_others] => Some(!by_others),
            [false, _] => None,
        }
    }

    /// Whether the API server selects by namespace as a field: it responds with an error if not.
    async fn understands_namespaces(&self, namespace: &str) -> bool {
        let field = equal_to("metadata.namespace", namespace);
        let selects = async {
            match self.ask(&[("fieldSelector", &field)]).await {
                Ok(_) => Some(true),
                Err(NoAnswer::Ever) => Some(false),
                Err(NoAnswer::Now) => None,
            }
        };
        self.remembered(|known| &mut known.namespaces, selects).await
    }

    /// The knowledge of an ability; `probe` finds it out if there is none. An ability that stays
    /// unknown is not used, nor that of a resource that is not remembered.
    async fn remembered(
        &self,
        ability: fn(&mut Knowledge) -> &mut Option<bool>,
        probe: impl Future<Output = Option<bool>>,
    ) -> bool {
        let Upstream { server, understood, .. } = self.upstream;
        // The API server may close a connection after an anonymous request.
        if server.pushdown == Pushdown::Off || self.own.is_anonymous() {
            return false;
        }
        let Some(resource) = self.info.resource() else { return false };
        let resource = GroupResource::of(resource);
        let Some(mut known) = understood.of(&resource) else { return false };
        if let Some(known) = *ability(&mut known) {
            return known;
        }
        let found = probe.await;
        if found.is_some() {
            understood.note(resource, |known| *ability(known) = found);
        }
        found.unwrap_or_default()
    }

    /// A list of one object, at the path without a `watch` verb: that would open a second watch.
    async fn ask(&self, selectors: &[(&str, &str)]) -> Result<ProbedList, NoAnswer> {
        let mut query = vec![("limit", Some("1"))];
        query.extend(selectors.iter().map(|(name, value)| (*name, Some(*value))));
        let target = format!("{}?{}", self.info.own_path(), Query::default().rewrite(&query));
        let Self { upstream, own, .. } = self;
        let reply = own.get(upstream, Why::Pushdown, &target, WHOLE, PATIENCE).await?;
        match reply.status() {
            StatusCode::OK => serde_json::from_slice(reply.body()).map_err(|_| NoAnswer::Ever),
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => Err(NoAnswer::Now),
            code if code.is_server_error() => Err(NoAnswer::Now),
            _ => Err(NoAnswer::Ever),
        }
    }
}

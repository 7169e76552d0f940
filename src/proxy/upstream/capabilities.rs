//! The part of a boundary that is pushed to an API server, once it proves that it understands.
//!
//! Hides the proof: a few lists of one object for each server and resource. A list
//! echoes the hashes that selected it (`metadata.shardInfo`), but those of custom resources do not:
//! there, one object must be listed by its own hash and by no other. Each object is judged here
//! too, whatever arrives.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde::Deserialize;

use super::{
    behalf::{ClientContext, NoAnswer},
    connection::Upstream,
    server::Knowledge,
};
use crate::{config::Pushdown, outcome::Why};
use ctrlmesh_policy::{Filter, GroupResource, Hashes, Pushed};
use ctrlmesh_wire::{
    Query, RequestInfo,
    frames::{self, ListItems},
    media::Encoding,
    object::Object,
    selector::equal_to,
};

/// Timeout of one list of one object. The client's request waits for it, and later ones use its
/// result too.
const PATIENCE: Duration = Duration::from_secs(3);
/// The media type with the echo: neither a Table nor a list of metadata has it.
const WHOLE: HeaderValue = HeaderValue::from_static("application/json");

/// A list of one object.
struct ProbedList {
    /// The hashes that selected it, as the list says itself. `None` if it does not say.
    selected_by: Option<String>,
    items: Vec<Item>,
}

struct Item {
    namespace: String,
    name: String,
    uid: String,
}

/// The echo in a list.
#[derive(Deserialize)]
struct Echoed {
    #[serde(default)]
    metadata: EchoedMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EchoedMeta {
    shard_info: Option<ShardInfo>,
}

#[derive(Deserialize)]
struct ShardInfo {
    #[serde(default)]
    selector: String,
}

impl ProbedList {
    /// Reads a list. `None` if it is none, or has an object without a name.
    fn read(body: &[u8]) -> Option<Self> {
        let Echoed { metadata } = serde_json::from_slice(body).ok()?;
        let mut items = Vec::new();
        let mut list = ListItems::new(Encoding::Json)?;
        list.feed(body, &mut |frames::Item { object, .. }| {
            let Object { namespace, name, uid, .. } = object;
            let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
            items.push(Item { namespace, name, uid });
        })
        .ok()?;
        list.finish().ok()?;
        if items.iter().any(|item| item.name.is_empty()) {
            return None;
        }
        Some(Self { selected_by: metadata.shard_info.map(|info| info.selector), items })
    }
}

/// The part of the boundaries to push for a collection, and its metric label.
pub(crate) async fn understood(
    upstream: &Upstream,
    info: &RequestInfo<'_>,
    filter: &Filter,
    own: ClientContext<'_>,
) -> (Pushed, &'static str) {
    if !filter.is_each() {
        return (Pushed::default(), "selector");
    }
    let mut pushed = Pushed::of(filter, &info.options);
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
pub(crate) struct Probe<'a> {
    pub(crate) upstream: &'a Upstream,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) own: ClientContext<'a>,
}

impl Probe<'_> {
    /// Whether the API server selects this resource by hashes.
    pub(crate) async fn understands_hashes(&self, hashes: &Hashes) -> bool {
        self.remembered(|known| &mut known.hashes, self.selects_by(hashes)).await
    }

    async fn selects_by(&self, hashes: &Hashes) -> Option<bool> {
        match self.ask(&[("shardSelector", &hashes.to_string())]).await {
            Err(NoAnswer::Ever) => Some(false),
            Err(NoAnswer::Now) => None,
            Ok(ProbedList { selected_by: Some(selector), .. }) => {
                Some(hashes.is_said_by(&selector))
            }
            Ok(answer) => {
                let is_in = |item: &Item| hashes.has(&item.uid, &item.namespace);
                match answer.items.iter().all(is_in) {
                    true => self.goes_by(hashes).await,
                    false => Some(false),
                }
            }
        }
    }

    /// Whether some object is listed by its own hash and by no other. `None` if there is no object, or none any
    /// more.
    async fn goes_by(&self, hashes: &Hashes) -> Option<bool> {
        let Item { namespace, name, uid } = self.ask(&[]).await.ok()?.items.pop()?;
        let mut fields = equal_to("metadata.name", &name);
        if !namespace.is_empty() {
            fields.push_str(&format!(",{}", equal_to("metadata.namespace", &namespace)));
        }
        let (own, others) = hashes.of_one(&uid, &namespace);
        let mut is_listed = [false; 2];
        for (hashes, is_listed) in [own, others].iter().zip(&mut is_listed) {
            let query = [("shardSelector", &*hashes.to_string()), ("fieldSelector", &fields)];
            let ProbedList { items, .. } = self.ask(&query).await.ok()?;
            *is_listed = items.iter().any(|item| item.uid == uid);
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
            StatusCode::OK => ProbedList::read(reply.body()).ok_or(NoAnswer::Ever),
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

//! The requests that are answered, and their responses.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams},
};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    bodies::{Bodies, Whole},
    leaves::{self, Leaves},
    unsent::Unsent,
};
use crate::{
    admission::{self, Found, PodMeta, RUNS, RunningPod, Verdict},
    configs::{Configs, namespace},
    shared::Shared,
    workload,
};
use ctrlmesh_api::{RootTarget, keys};
use ctrlmesh_base::cluster::{chain, pages};
use ctrlmesh_inject::Settings;
use ctrlmesh_policy::{Kind, NamespaceLabels};
use ctrlmesh_wire::{
    Encoding,
    status::{Reason, Status},
};

/// The path of admission for namespaces that enforce neither `baseline` nor `restricted`.
pub const INJECT: &str = "/inject";
/// The path of admission for namespaces that enforce `baseline` or `restricted`.
pub const INJECT_BASELINE: &str = "/inject/baseline";
/// The path of admission for ShardingConfigs.
pub const VALIDATE: &str = "/validate";
/// The path of enrolment.
pub const LEAF: &str = "/v1/leaf";

/// The most bytes of a review: an object of the API server's limit of 3 MiB, and the fields around it.
const MAX_REVIEW: usize = 8 << 20;

/// The time for a consistent list during a review, whose caller waits for five seconds.
const LIST: Duration = Duration::from_secs(3);

/// The ShardingConfigs of a page of such a list. Each may have a mebibyte.
const PAGE: u32 = 50;

/// The reviews that list ShardingConfigs at once.
const LISTS: usize = 2;

/// The answers to requests.
pub(crate) struct Routes {
    shared: Arc<Shared>,
    client: Client,
    bodies: Bodies,
    leaves: Leaves,
    lists: Semaphore,
}

impl Routes {
    pub(crate) fn new(shared: Arc<Shared>, client: Client) -> Self {
        let leaves = Leaves::new(Arc::clone(&shared), client.clone());
        let lists = Semaphore::new(LISTS);
        Self { shared, client, bodies: Bodies::default(), leaves, lists }
    }

    /// Answers one request.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        unsent: &Unsent,
    ) -> Response<Full<Bytes>> {
        let settings = &self.shared.config.settings;
        let path = request.uri().path();
        let known = [INJECT, INJECT_BASELINE, VALIDATE, LEAF];
        if !known.contains(&path) {
            let message = "there is POST /inject, /inject/baseline, /validate and /v1/leaf";
            return refused(&Status::new(Reason::NotFound, message));
        }
        if request.method() != Method::POST {
            let status = Status::new(Reason::MethodNotAllowed, "only POST is answered here");
            return refused(&status);
        }
        let answered = match path {
            INJECT => self.review(request, &settings.privileged, unsent).await,
            INJECT_BASELINE => self.review(request, &settings.baseline, unsent).await,
            VALIDATE => self.validate(request, unsent).await,
            _ => self.leaf(request, unsent).await,
        };
        answered.unwrap_or_else(|status| refused(&status))
    }

    async fn review(
        &self,
        request: Request<Incoming>,
        settings: &Settings,
        unsent: &Unsent,
    ) -> Result<Response<Full<Bytes>>, Box<Status>> {
        let Whole { bytes, place } = self.bodies.read(request.into_body(), MAX_REVIEW).await?;
        let configs = known_configs(&self.shared)?;
        let begun = Instant::now();
        let answer = admission::review(&bytes, settings, &configs)
            .map_err(|bad| Box::new(Status::new(Reason::BadRequest, bad.to_string())))?;
        let metrics = &self.shared.metrics;
        metrics.review_duration.observe(begun.elapsed().as_secs_f64());
        metrics.reviews.get_or_create_owned(&[("verdict", answer.verdict.reason())]).inc();
        match &answer.verdict {
            Verdict::Refused(why) => {
                tracing::warn!(pod = answer.pod, %why, "a pod is refused");
            }
            verdict => tracing::debug!(pod = answer.pod, verdict = verdict.reason(), "reviewed"),
        }
        drop(bytes);
        let body = unsent.body(answer.body, Some(place));
        Ok(response(StatusCode::OK, "application/json", body))
    }

    async fn validate(
        &self,
        request: Request<Incoming>,
        unsent: &Unsent,
    ) -> Result<Response<Full<Bytes>>, Box<Status>> {
        let Whole { bytes, place } = self.bodies.read(request.into_body(), MAX_REVIEW).await?;
        let configs = known_configs(&self.shared)?;
        let namespaces = known_namespaces(&self.shared)?;
        let begun = Instant::now();
        let review = |configs: &Configs, found: Found<'_>| {
            admission::review_config(&bytes, configs, &namespaces, found)
                .map_err(|bad| Box::new(Status::new(Reason::BadRequest, bad.to_string())))
        };
        let mut found = Found::default();
        let mut answer = review(&configs, found)?;
        // A watch may not have shown yet that a sibling has given it up.
        if answer.is_by_sibling
            && let Some(configs) = self.read(namespace(&answer.config), &configs).await
        {
            answer = review(&configs, found)?;
        }
        let pods;
        if answer.asks_for_pods {
            pods = self.running(namespace(&answer.config)).await?;
            found.pods = Some(&pods);
            answer = review(&configs, found)?;
        }
        if let Some(target) = &answer.target
            && let Some(warning) = self.warning(namespace(&answer.config), target).await
        {
            answer = review(&configs, Found { workload: Some(&warning), ..found })?;
        }
        let metrics = &self.shared.metrics;
        metrics.config_review_duration.observe(begun.elapsed().as_secs_f64());
        let verdict = match (&answer.refused, answer.is_warned) {
            (Some(why), _) => {
                tracing::warn!(config = answer.config, why, "a config is refused");
                "Refused"
            }
            (None, true) => "Warned",
            (None, false) => "Allowed",
        };
        metrics.config_reviews.get_or_create_owned(&[("verdict", verdict)]).inc();
        drop(bytes);
        let body = unsent.body(answer.body, Some(place));
        Ok(response(StatusCode::OK, "application/json", body))
    }

    /// The ShardingConfigs of a namespace, by a consistent list, in pages. `None` if it is not answered
    /// in time.
    async fn read(&self, namespace: &str, known: &Configs) -> Option<Configs> {
        let kind = Kind::ShardingConfig.api_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let listed = timeout(LIST, async {
            let _turn = self.lists.acquire().await.ok()?;
            let (mut configs, mut params) = (Configs::default(), ListParams::default().limit(PAGE));
            loop {
                let warn = |error: &kube::Error| {
                    tracing::warn!(error = chain(error), "the ShardingConfigs cannot be read");
                };
                let page = api.list(&params).await.inspect_err(warn).ok()?;
                page.items.iter().for_each(|config| configs.add_beside(config, known));
                match page.metadata.continue_.filter(|from| !from.is_empty()) {
                    Some(from) => params.continue_token = Some(from),
                    None => return Some(configs),
                }
            }
        });
        listed.await.ok()?
    }

    /// The warning about the workload of a root. `None` if there is none, or it is not answered in time.
    async fn warning(&self, namespace: &str, target: &RootTarget) -> Option<String> {
        let found = timeout(LIST, workload::find(&self.client, namespace, target)).await.ok()?;
        let warn = |error: &kube::Error| {
            tracing::warn!(error = chain(error), "the workload of a root cannot be read");
        };
        let found = found.inspect_err(warn).ok()?;
        found.problem(namespace, target).or_else(|| found.warning(target))
    }

    /// The injected pods of a namespace that run, by a consistent list.
    async fn running(&self, namespace: &str) -> Result<Vec<RunningPod>, Box<Status>> {
        let unknown = |why: String| {
            let message = format!("it cannot be told which pods run: {why}; try again");
            Box::new(Status::new(Reason::ServiceUnavailable, message))
        };
        let mut pods = Vec::new();
        for prefix in [keys::PREFIX, keys::KRIDGE_PREFIX] {
            let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
            let params = ListParams::default().labels(&label).fields(RUNS);
            let path = Pod::url_path(&(), Some(namespace));
            let add = |pod: PodMeta| pods.extend(RunningPod::of(pod));
            let listed = timeout(LIST, pages(&self.client, path, params, add)).await;
            let listed = listed.map_err(|late| unknown(late.to_string()))?;
            listed.map_err(|error| unknown(chain(&error)))?;
        }
        Ok(pods)
    }

    async fn leaf(
        &self,
        request: Request<Incoming>,
        unsent: &Unsent,
    ) -> Result<Response<Full<Bytes>>, Box<Status>> {
        let (head, body) = request.into_parts();
        let token = leaves::token(&head.headers)?;
        let Whole { bytes, place } = self.bodies.read(body, leaves::MAX_REQUEST).await?;
        let chain = self.leaves.sign(&token, &bytes).await?;
        let body = unsent.body(chain.into_bytes(), Some(place));
        Ok(response(StatusCode::OK, "application/pem-certificate-chain", body))
    }
}

/// The ShardingConfigs. Fails with the response to give until they were listed once: without them a
/// pod would lack for its life what its config asks for.
fn known_configs(shared: &Shared) -> Result<Arc<Configs>, Box<Status>> {
    let message = "the ShardingConfigs are not listed yet; try again";
    let unknown = || Box::new(Status::new(Reason::ServiceUnavailable, message));
    shared.configs.borrow().clone().ok_or_else(unknown)
}

/// The labels of all namespaces. Fails with the response to give until they were listed once.
fn known_namespaces(shared: &Shared) -> Result<Arc<NamespaceLabels>, Box<Status>> {
    let message = "the namespaces are not listed yet; try again";
    let unknown = || Box::new(Status::new(Reason::ServiceUnavailable, message));
    shared.namespaces.borrow().clone().ok_or_else(unknown)
}

fn refused(status: &Status) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = status.encode(Encoding::Json);
    let mut response = response(code, "application/json", body);
    let after = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    if let Some(after) = after {
        response.headers_mut().insert(header::RETRY_AFTER, after.into());
    }
    response
}

fn response(code: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_i13_no_review_is_answered_before_the_configs_were_listed() {
        let shared = Shared::for_tests();
        let status = known_configs(&shared).unwrap_err();
        assert_eq!(status.code, 503);
        assert!(status.message.contains("not listed yet"), "{}", status.message);
        shared.configs.send_replace(Some(Arc::default()));
        assert!(known_configs(&shared).is_ok());
    }

    #[test]
    fn bad_i15_no_config_is_compared_before_the_namespaces_were_listed() {
        let shared = Shared::for_tests();
        let status = known_namespaces(&shared).unwrap_err();
        assert_eq!(status.code, 503);
        assert!(status.message.contains("not listed yet"), "{}", status.message);
        shared.namespaces.send_replace(Some(Arc::default()));
        assert!(known_namespaces(&shared).is_ok());
    }
}

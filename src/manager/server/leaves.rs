//! Leaves for proxies: the API server identifies the client, and the manager decides what it signs.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, header};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    core::v1::Pod,
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    enrolment::{Claim, NotAHolder},
    shared::Shared,
    trust::{BadRequest, LeafKey, NotSigned},
};
use ctrlmesh_base::{cluster::chain, sidecar::AUDIENCE};
use ctrlmesh_net::{ca::certificate_pem, identity::PodIdentity};
use ctrlmesh_wire::status::{Details, Reason, Status};

/// The most bytes of a certificate request: one for an RSA key of 16,384 bits has 5 KiB.
pub(super) const MAX_REQUEST: usize = 16 << 10;
/// The most bytes of a token.
const MAX_TOKEN: usize = 16 << 10;
/// Requests at once, each of which asks the API server twice; more wait, for so long.
const AT_ONCE: usize = 32;
const WAIT: Duration = Duration::from_secs(5);
/// The time of both questions.
const ANSWER: Duration = Duration::from_secs(5);
/// The seconds after which a proxy may ask again.
const RETRY_AFTER: u32 = 2;

/// The signing of leaves.
pub(super) struct Leaves {
    shared: Arc<Shared>,
    client: Client,
    places: Semaphore,
}

/// A ServiceAccount's token. Not printable.
pub(super) struct Token(String);

/// The reason why nothing is signed.
#[derive(Debug, thiserror::Error)]
enum Unsigned {
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    #[error(transparent)]
    NotAHolder(#[from] NotAHolder),
    #[error("the API server cannot be asked")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", ANSWER.as_secs())]
    Late,
    #[error("too many requests are under way")]
    TooMany,
    #[error("there are no certificate authorities yet")]
    NoAuthorities,
    #[error(transparent)]
    NotSigned(#[from] NotSigned),
}

/// The token of a request. Fails with the response to give instead.
pub(super) fn token(headers: &HeaderMap) -> Result<Token, Box<Status>> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = value.and_then(|value| value.split_once(' '));
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| token.trim()) {
        Some(token) if !token.is_empty() && token.len() <= MAX_TOKEN => Ok(Token(token.to_owned())),
        _ => {
            let message = format!("a Bearer token of audience {AUDIENCE} is needed");
            Err(Box::new(Status::new(Reason::Unauthorized, message)))
        }
    }
}

impl Leaves {
    pub(super) fn new(shared: Arc<Shared>, client: Client) -> Self {
        Self { shared, client, places: Semaphore::new(AT_ONCE) }
    }

    /// Signs a leaf for who has the token; returns its chain as PEM. Fails with the response to
    /// give instead.
    pub(super) async fn sign(&self, token: &Token, request: &[u8]) -> Result<String, Box<Status>> {
        let signed = self.try_sign(token, request).await;
        let result = match &signed {
            Ok(_) => "signed",
            Err(unsigned) => unsigned.label(),
        };
        self.shared.metrics.leaves.get_or_create_owned(&[("result", result)]).inc();
        match signed {
            Ok((chain, pod)) => {
                tracing::info!(namespace = pod.namespace(), pod = pod.name(), "a leaf is signed");
                Ok(chain)
            }
            Err(unsigned) => {
                tracing::warn!(result, error = chain(&unsigned), "no leaf is signed");
                Err(Box::new(unsigned.status()))
            }
        }
    }

    async fn try_sign(
        &self,
        token: &Token,
        request: &[u8],
    ) -> Result<(String, PodIdentity), Unsigned> {
        let key = LeafKey::of_request(request)?;
        let place = timeout(WAIT, self.places.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(Unsigned::TooMany) };
        let asked = timeout(ANSWER, self.holder(token)).await;
        let pod = asked.map_err(|_| Unsigned::Late)??;
        let trusted = self.shared.trusted.borrow().clone().ok_or(Unsigned::NoAuthorities)?;
        let clock = &self.shared.config.clock;
        let chain = trusted.trust.sign(&trusted.purpose, &key, &pod, clock)?;
        Ok((chain.iter().map(certificate_pem).collect(), pod))
    }

    /// The pod whose proxy has the token.
    async fn holder(&self, token: &Token) -> Result<PodIdentity, Unsigned> {
        let spec = TokenReviewSpec {
            token: Some(token.0.clone()),
            audiences: Some(vec![AUDIENCE.to_owned()]),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        let claim = Claim::of_review(review.status.unwrap_or_default())?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), claim.pod().namespace());
        let pod = pods.get_opt(claim.pod().name()).await?;
        Ok(claim.holder(pod.as_ref())?)
    }
}

impl Unsigned {
    /// A word for metrics and logs.
    fn label(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad_request",
            Self::NotAHolder(why) => why.reason(),
            Self::Api(_) | Self::Late => "api_server",
            Self::TooMany => "too_many",
            Self::NoAuthorities | Self::NotSigned(_) => "no_authorities",
        }
    }

    /// The response. It names a problem with a token or a pod, so that the proxy can report it. It does not
    /// repeat the words of the API server.
    fn status(&self) -> Status {
        let reason = match self {
            Self::BadRequest(_) => Reason::BadRequest,
            Self::NotAHolder(
                NotAHolder::NotAuthenticated(_)
                | NotAHolder::OtherAudience
                | NotAHolder::NoServiceAccount(_),
            ) => Reason::Unauthorized,
            Self::NotAHolder(_) => Reason::Forbidden,
            Self::TooMany => Reason::TooManyRequests,
            Self::Api(_) | Self::Late | Self::NoAuthorities | Self::NotSigned(_) => {
                Reason::ServiceUnavailable
            }
        };
        let is_passing = matches!(reason, Reason::TooManyRequests | Reason::ServiceUnavailable);
        let mut status = Status::new(reason, self.to_string());
        if is_passing {
            let details = Details { retry_after_seconds: Some(RETRY_AFTER), ..Details::default() };
            status.details = Some(details);
        }
        status
    }
}

//! Single requests to an API server, by its administrator or with any token.

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::Value;
use ureq::{
    Agent,
    http::Request,
    tls::{Certificate, RootCerts, TlsConfig},
};

use crate::programs::Network;

const TIME_LIMIT: Duration = Duration::from_secs(30);
const LARGEST_BODY: u64 = 256 << 20;

/// Sends one request at a time over HTTP/1.1, with the server verified.
pub struct Client {
    agent: Agent,
    base: String,
    token: String,
    network: Network,
}

impl Client {
    /// A client of the server at `base` (`https://HOST:PORT`), which one of the CAs of `ca_pem`
    /// verifies.
    ///
    /// # Errors
    ///
    /// When `ca_pem` holds no PEM certificate, or another PEM document that is broken.
    pub fn new(base: &str, ca_pem: &str, token: &str, network: &Network) -> Result<Self> {
        let mut cas = Vec::new();
        for ca in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            cas.push(Certificate::from_der(&ca.context("a CA to verify with")?).to_owned());
        }
        ensure!(!cas.is_empty(), "no CA to verify with");
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(cas)))
            .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(TIME_LIMIT))
            .build()
            .new_agent();
        let (base, token) = (base.to_owned(), token.to_owned());
        Ok(Self { agent, base, token, network: network.clone() })
    }

    /// The same client with another bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            agent: self.agent.clone(),
            base: self.base.clone(),
            token: token.to_owned(),
            network: self.network.clone(),
        }
    }

    /// Gets `path` with its query, such as `/api/v1/namespaces?limit=1`.
    ///
    /// # Errors
    ///
    /// When there is no complete response; a refusal is a response.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.request("GET", path, "application/json", Vec::new())
    }

    /// Posts an object.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn post(&self, path: &str, object: &Value) -> Result<Response> {
        self.request("POST", path, "application/json", object.to_string().into_bytes())
    }

    /// Deletes the object or collection at `path`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn delete(&self, path: &str) -> Result<Response> {
        self.request("DELETE", path, "application/json", Vec::new())
    }

    /// Watches the collection at `path` until `wanted` returns a value, at most `limit`. Existing
    /// objects come first, as ADDED. An event is `{"type": …, "object": …}`.
    ///
    /// # Errors
    ///
    /// When the server refuses, and when the watch ends or the time is over without a value.
    pub fn watch_until<T: Send>(
        &self,
        path: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Value) -> Option<T> + Send,
    ) -> Result<T> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let request = Request::get(format!("{}{path}{separator}watch=true", self.base))
            .header("authorization", format!("Bearer {}", self.token))
            .header("accept", "application/json")
            .body(())?;
        let what = || format!("watching {path} for at most {} s", limit.as_secs());
        self.network.enter(|| {
            let request = self.agent.configure_request(request);
            let request = request.timeout_global(Some(limit)).build();
            let mut response = self.agent.run(request).with_context(what)?;
            if response.status() != 200 {
                let text = response.body_mut().read_to_string().unwrap_or_default();
                bail!("{}: status {}: {text}", what(), response.status());
            }
            for line in BufReader::new(response.body_mut().as_reader()).lines() {
                let event = serde_json::from_str(&line.with_context(what)?)?;
                if let Some(answer) = wanted(&event) {
                    return Ok(answer);
                }
            }
            bail!("{}: the server ended the watch", what())
        })
    }

    /// Sends any request.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Response> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", content_type)
            .header("accept", "application/json")
            .body(body)?;
        let what = format!("{method} {path}");
        self.network.enter(|| {
            let mut response = self.agent.run(request).context(what.clone())?;
            let text = response.body_mut().with_config().limit(LARGEST_BODY).read_to_string();
            let status = response.status().as_u16();
            Ok(Response { status, text: text.with_context(|| what.clone())?, what })
        })
    }
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// The body.
    pub text: String,
    what: String,
}

impl Response {
    /// The body of a 2xx response.
    ///
    /// # Errors
    ///
    /// When the status is another one, or the body is not JSON.
    pub fn json(&self) -> Result<Value> {
        if !(200..300).contains(&self.status) {
            bail!("{}: status {}: {}", self.what, self.status, self.text);
        }
        serde_json::from_str(&self.text).with_context(|| format!("{}: reading the body", self.what))
    }
}

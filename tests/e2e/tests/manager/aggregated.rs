//! An API server behind the real one, which lists as many objects as it is notified to have.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, until};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned, crypto::aws_lc_rs, pki_types::PrivatePkcs8KeyDer,
};
use serde_json::{Value, json};

/// The group of the objects; they are `things`.
pub(crate) const GROUP: &str = "load.example.com";
/// The time in which the API server finds it.
const SOON: Duration = Duration::from_secs(60);

/// The objects that are listed.
#[derive(Clone, Copy)]
pub(crate) struct Things {
    pub(crate) count: usize,
    /// They are spread over so many namespaces, `namespace-0` and on.
    pub(crate) namespaces: usize,
}

impl Things {
    /// Serves them behind the API server, until the process ends, and lets the manager list them.
    pub(crate) fn serve(self, api: &ApiServer) -> Result<()> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (port, config) = (listener.local_addr()?.port(), Arc::new(config));
        // Ends with the process of the test. The API server says of a connection that it failed.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                thread::spawn(move || {
                    ServerConnection::new(config).map(|tls| self.answer(tls, stream))
                });
            }
        });
        self.register(api, port)
    }

    fn register(self, api: &ApiServer, port: u16) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "load", "namespace": "default" },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        let registered = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("v1.{GROUP}") },
            "spec": {
                "group": GROUP, "version": "v1", "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 1000, "versionPriority": 10,
                "service": { "name": "load", "namespace": "default", "port": port },
            },
        });
        api.apply(&service.to_string())?;
        api.apply(&registered.to_string())?;
        let resource = format!("--resource=things.{GROUP}");
        api.kubectl(&["create", "clusterrole", "lister", "--verb=list", &resource])?;
        let bound = ["--clusterrole=lister", "--serviceaccount=ctrlmesh-system:ctrlmesh-manager"];
        api.kubectl(&[&["create", "clusterrolebinding", "lister"], &bound[..]].concat())?;
        let path = format!("/apis/{GROUP}/v1/things?limit=1");
        until(
            "they are listed",
            SOON,
            || Ok((api.client().get(&path)?.status == 200).then_some(())),
        )
    }

    fn answer(self, tls: ServerConnection, stream: TcpStream) -> Result<()> {
        let mut stream = BufReader::new(StreamOwned::new(tls, stream));
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                ensure!(stream.read_until(b'\n', &mut head)? > 0, "the API server closed");
            }
            let head = String::from_utf8(head)?;
            let asked = head.split(' ').nth(1).context("a path")?;
            let (code, body) = self.say(asked)?;
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
            stream.get_mut().flush()?;
        }
    }

    fn say(self, asked: &str) -> Result<(&'static str, Value)> {
        let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
        if path == format!("/apis/{GROUP}/v1") {
            let things = json!({
                "name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing",
                "verbs": ["list"],
            });
            let list = json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": format!("{GROUP}/v1"), "resources": [things],
            });
            return Ok(("200 OK", list));
        }
        if path != format!("/apis/{GROUP}/v1/things") {
            return Ok(("404 Not Found", json!({})));
        }
        let number = |name: &str| -> Result<Option<usize>> {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
            Ok(value.map(str::parse).transpose()?)
        };
        let from = number("continue=")?.unwrap_or_default();
        let to = self.count.min(from + number("limit=")?.unwrap_or(self.count));
        let items = (from..to).map(|at| {
            json!({ "metadata": {
                "name": format!("thing-{at}"),
                "namespace": format!("namespace-{}", at % self.namespaces),
                "uid": format!("00000000-0000-4000-8000-{at:012}"),
            } })
        });
        let next = if to < self.count { to.to_string() } else { String::new() };
        let list = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": "1", "continue": next },
            "items": items.collect::<Vec<_>>(),
        });
        Ok(("200 OK", list))
    }
}

//! ServiceAccounts with rights and a bound token, as a controller has them.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{ApiServer, Client};
use crate::{kubectl::write_kubeconfig, programs::until};

const TOKEN_SECONDS: u32 = 24 * 3600;
const RIGHTS_LIMIT: Duration = Duration::from_secs(10);

/// One rule of a ClusterRole.
#[derive(Clone, Debug)]
pub struct Rule {
    groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Rule {
    /// Allows these verbs on these resources of these groups. Resources are plurals, with
    /// subresources as `pods/log`. The group `""` is the core group. `*` is all.
    #[must_use]
    pub fn new(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self { groups: owned(groups), resources: owned(resources), verbs: owned(verbs) }
    }

    /// All rights on all resources.
    #[must_use]
    pub fn all() -> Self {
        Self::new(&["*"], &["*"], &["*"])
    }

    fn json(&self) -> Value {
        json!({ "apiGroups": self.groups, "resources": self.resources, "verbs": self.verbs })
    }
}

/// A ServiceAccount whose rights are in force.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// A bound token (TokenRequest), valid for a day.
    pub token: String,
    /// A kubeconfig with that token.
    pub kubeconfig: PathBuf,
}

impl ServiceAccount {
    /// Its username in the audit log.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl ApiServer {
    /// Creates a ServiceAccount, and its namespace, with these rights in the whole cluster. Returns
    /// once the API server grants them.
    ///
    /// # Errors
    ///
    /// When the server refuses a part of it.
    pub fn service_account(
        &self,
        namespace: &str,
        name: &str,
        rules: &[Rule],
    ) -> Result<ServiceAccount> {
        let core = "/api/v1/namespaces";
        self.make(core, &json!({ "metadata": { "name": namespace } }))?;
        let accounts = format!("{core}/{namespace}/serviceaccounts");
        self.make(&accounts, &json!({ "metadata": { "name": name } }))?;
        self.grant(namespace, name, rules)?;
        let token = self.token(namespace, name)?;
        self.await_rights(&self.client().with_token(&token), rules)?;
        let kubeconfig = self.kubeconfig_for(&self.url(), self.ca_pem(), &token)?;
        Ok(ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token,
            kubeconfig,
        })
    }

    /// A new bound token of a ServiceAccount, valid for a day.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn token(&self, namespace: &str, name: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({ "spec": { "expirationSeconds": TOKEN_SECONDS } });
        let answer = self.client().post(&path, &request)?.json()?;
        let token = answer["status"]["token"].as_str().context("the answer has no token")?;
        Ok(token.to_owned())
    }

    /// Writes a kubeconfig for this token at any server, such as a proxy with its own CA.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn kubeconfig_for(&self, server: &str, ca_pem: &str, token: &str) -> Result<PathBuf> {
        let directory = self.bed().subdirectory("kubeconfigs")?;
        let name: String = std::iter::repeat_with(fastrand::lowercase).take(12).collect();
        let ca = directory.join(format!("{name}.crt"));
        std::fs::write(&ca, ca_pem)?;
        let kubeconfig = directory.join(format!("{name}.kubeconfig"));
        write_kubeconfig(&kubeconfig, server, &ca, &json!({ "token": token }))?;
        Ok(kubeconfig)
    }

    fn grant(&self, namespace: &str, name: &str, rules: &[Rule]) -> Result<()> {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role = format!("{namespace}:{name}");
        let rules: Vec<Value> = rules.iter().map(Rule::json).collect();
        self.make(
            &format!("{rbac}/clusterroles"),
            &json!({ "metadata": { "name": role }, "rules": rules }),
        )?;
        self.make(
            &format!("{rbac}/clusterrolebindings"),
            &json!({
                "metadata": { "name": role },
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
                },
                "subjects": [{ "kind": "ServiceAccount", "namespace": namespace, "name": name }],
            }),
        )
    }

    /// Polls: the authorizer learns of a new role by a watch of its own, invisible outside.
    fn await_rights(&self, client: &Client, rules: &[Rule]) -> Result<()> {
        let Some(rule) = rules.last() else {
            return Ok(());
        };
        let first = |words: &[String]| words.first().cloned().unwrap_or_default();
        let resource = first(&rule.resources);
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let review = json!({ "spec": { "resourceAttributes": {
            "group": first(&rule.groups),
            "resource": resource,
            "subresource": subresource,
            "verb": first(&rule.verbs),
        } } });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        until("the ServiceAccount has its rights", RIGHTS_LIMIT, || {
            let answer = client.post(path, &review)?.json()?;
            Ok((answer["status"]["allowed"] == true).then_some(()))
        })
    }

    /// Creates an object; an existing one is left as it is.
    fn make(&self, path: &str, object: &Value) -> Result<()> {
        let response = self.client().post(path, object)?;
        if response.status != 201 && response.status != 409 {
            bail!("POST {path}: status {}: {}", response.status, response.text);
        }
        Ok(())
    }
}

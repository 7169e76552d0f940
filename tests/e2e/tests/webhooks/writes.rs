//! Drawn writes: every row of the table of reviews.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::webhooks::{
    owner::{Known, TEAMS},
    world::{Object, Resource, World},
};

const APPLY: &str = "application/apply-patch+yaml";

/// The next write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Create(Resource),
    DryRun(Resource),
    Update,
    Patch(Resource),
    ApplyNew,
    ApplyAgain,
    Delete(Resource),
    DeleteCollection,
    Status(Resource),
    Scale,
    Evict,
    Bind,
    Token,
    Exec,
}

/// Every action, each often enough that others find an object.
pub(crate) const ACTIONS: [Action; 30] = [
    Action::Create(Resource::ConfigMap),
    Action::Create(Resource::ConfigMap),
    Action::Create(Resource::ConfigMap),
    Action::Create(Resource::Secret),
    Action::Create(Resource::Account),
    Action::Create(Resource::Pod),
    Action::Create(Resource::Pod),
    Action::Create(Resource::Deployment),
    Action::Create(Resource::Widget),
    Action::Create(Resource::Namespace),
    Action::DryRun(Resource::ConfigMap),
    Action::DryRun(Resource::Pod),
    Action::Update,
    Action::Patch(Resource::ConfigMap),
    Action::Patch(Resource::Pod),
    Action::Patch(Resource::Widget),
    Action::Patch(Resource::Namespace),
    Action::ApplyNew,
    Action::ApplyAgain,
    Action::Delete(Resource::ConfigMap),
    Action::Delete(Resource::Pod),
    Action::Delete(Resource::Namespace),
    Action::DeleteCollection,
    Action::Status(Resource::Pod),
    Action::Status(Resource::Widget),
    Action::Scale,
    Action::Evict,
    Action::Bind,
    Action::Token,
    Action::Exec,
];

impl World<'_> {
    /// Does so many writes, and every action once.
    pub(crate) fn write(&mut self, count: usize) -> Result<()> {
        let until = self.writes + count;
        let mut all = ACTIONS;
        self.rng.shuffle(&mut all);
        for action in all {
            self.act(action)?;
        }
        while self.writes < until {
            let action = ACTIONS[self.rng.usize(..ACTIONS.len())];
            self.act(action)?;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Create(resource) => self.create(resource, ""),
            Action::DryRun(resource) => self.create(resource, "?dryRun=All"),
            Action::Update => self.update(),
            Action::Patch(resource) => self.relabel(resource),
            Action::ApplyNew => self.apply_new(),
            Action::ApplyAgain => self.apply_again(),
            Action::Delete(resource) => self.delete(resource),
            Action::DeleteCollection => self.delete_collection(),
            Action::Status(resource) => self.write_status(resource),
            Action::Scale => self.scale(),
            Action::Evict => self.evict(),
            Action::Bind => self.bind(),
            Action::Token => self.token(),
            Action::Exec => self.exec(),
        }
    }

    /// An UPDATE that gives the object to another team: it is the former one's until then.
    fn update(&mut self) -> Result<()> {
        let at = self.any(Resource::ConfigMap)?;
        let (old, team) = (self.objects[at].clone(), self.team());
        let body = labelled(&old, team.as_deref());
        self.send("PUT", &old.path(), "application/json", &body)?.json()?;
        self.expect_same("update ConfigMap", &old.facts());
        self.objects[at].team = team;
        Ok(())
    }

    fn relabel(&mut self, resource: Resource) -> Result<()> {
        let at = self.any(resource)?;
        let (old, team) = (self.objects[at].clone(), self.team());
        let mut labels = json!({ "team": team });
        if resource == Resource::Namespace {
            let tier = TEAMS[self.rng.usize(..TEAMS.len())];
            labels["tier"] = tier.into();
            self.objects[at].tier = tier.to_owned();
        }
        self.patch(&old.path(), &json!({ "metadata": { "labels": labels } }))?;
        self.expect_same(&format!("patch {resource:?}"), &old.facts());
        self.objects[at].team = team;
        Ok(())
    }

    fn apply(&mut self, object: &Object, team: Option<&str>) -> Result<Value> {
        let path = format!("{}?fieldManager=drawn&force=true", object.path());
        self.send("PATCH", &path, APPLY, &labelled(object, team))?.json()
    }

    fn apply_new(&mut self) -> Result<()> {
        let (namespace, tier) = self.namespaces[self.rng.usize(..self.namespaces.len())].clone();
        let name: String = (0..8).map(|_| self.rng.lowercase()).collect();
        let (resource, team) = (Resource::ConfigMap, self.team());
        let mut object = Object { resource, namespace, tier, name, uid: String::new(), team };
        let made = self.apply(&object, object.team.as_deref())?;
        object.uid = made["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.expect_create("apply a new ConfigMap", &object);
        self.objects.push(object);
        Ok(())
    }

    fn apply_again(&mut self) -> Result<()> {
        let at = self.any(Resource::ConfigMap)?;
        // Without a team it would leave the label, which is another's field.
        let (old, team) = (self.objects[at].clone(), TEAMS[self.rng.usize(..TEAMS.len())]);
        self.apply(&old, Some(team))?;
        self.expect_same("apply a ConfigMap", &old.facts());
        self.objects[at].team = Some(team.to_owned());
        Ok(())
    }

    fn delete(&mut self, resource: Resource) -> Result<()> {
        let at = self.any(resource)?;
        let old = self.objects.swap_remove(at);
        self.send("DELETE", &old.path(), "application/json", &Value::Null)?.json()?;
        self.expect_same(&format!("delete {resource:?}"), &old.facts());
        Ok(())
    }

    /// All ConfigMaps of a team in a namespace; each has reviews of its own.
    fn delete_collection(&mut self) -> Result<()> {
        let at = self.any(Resource::ConfigMap)?;
        let first = self.objects[at].clone();
        let selector =
            first.team.as_ref().map_or_else(|| "!team".to_owned(), |team| format!("team={team}"));
        let path = first.resource.path(&first.namespace, "");
        let path = format!("{path}?labelSelector=drawn=yes,{selector}");
        self.send("DELETE", &path, "application/json", &Value::Null)?.json()?;
        let is_gone = |object: &Object| {
            let same = (object.resource, &object.namespace, &object.team);
            same == (first.resource, &first.namespace, &first.team)
        };
        let (gone, left) = self.objects.drain(..).partition::<Vec<_>, _>(is_gone);
        self.objects = left;
        for object in gone {
            let facts = object.facts();
            let key = format!("pod.{}", object.uid);
            self.expect("deletecollection", &key, facts.clone(), facts);
        }
        Ok(())
    }

    fn write_status(&mut self, resource: Resource) -> Result<()> {
        let at = self.any(resource)?;
        let object = self.objects[at].clone();
        let status = if resource == Resource::Pod {
            json!({ "message": format!("written {}", self.writes) })
        } else {
            json!({ "handledBy": "nobody" })
        };
        self.patch(&format!("{}/status", object.path()), &json!({ "status": status }))?;
        self.expect_same(&format!("status of {resource:?}"), &object.facts());
        Ok(())
    }

    fn scale(&mut self) -> Result<()> {
        let at = self.any(Resource::Deployment)?;
        let object = self.objects[at].clone();
        let replicas = json!({ "spec": { "replicas": self.rng.u8(1..9) } });
        self.patch(&format!("{}/scale", object.path()), &replicas)?;
        self.expect_same("scale", &object.facts_of_part(Known::Yes(object.uid.clone())));
        Ok(())
    }

    fn evict(&mut self) -> Result<()> {
        let at = self.any(Resource::Pod)?;
        let object = self.objects.swap_remove(at);
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": object.name, "namespace": object.namespace },
        });
        self.post(&format!("{}/eviction", object.path()), &eviction)?;
        self.expect_same("evict", &object.facts_of_part(Known::No));
        Ok(())
    }

    fn bind(&mut self) -> Result<()> {
        let at = self.any(Resource::Pod)?;
        let object = self.objects[at].clone();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": object.name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "node1" },
        });
        self.post(&format!("{}/binding?dryRun=All", object.path()), &binding)?;
        self.expect_same("bind", &object.facts_of_part(Known::No));
        Ok(())
    }

    fn token(&mut self) -> Result<()> {
        let at = self.any(Resource::Account)?;
        let object = self.objects[at].clone();
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        self.post(&format!("{}/token", object.path()), &request)?;
        let validating = object.facts_of_part(Known::Yes(object.uid.clone()));
        self.expect("token", "pod", object.facts_of_part(Known::No), validating);
        Ok(())
    }

    /// A CONNECT to a pod that runs nowhere: it is reviewed, and then cannot be served.
    fn exec(&mut self) -> Result<()> {
        let at = self.any(Resource::Pod)?;
        let object = self.objects[at].clone();
        let path = format!("{}/exec?command=true&container=app", object.path());
        let answer = self.send("POST", &path, "application/json", &Value::Null)?;
        ensure!(answer.status == 400, "exec: {}: {}", answer.status, answer.text);
        self.expect_same("exec", &object.facts_of_part(Known::No));
        Ok(())
    }
}

/// A ConfigMap of this team, as a client writes it.
fn labelled(object: &Object, team: Option<&str>) -> Value {
    let mut labels = json!({ "drawn": "yes" });
    if let Some(team) = team {
        labels["team"] = team.into();
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": object.name, "namespace": object.namespace, "labels": labels },
    })
}

//! The name in YAML as libyaml reads it, from which the API server's reader was made: YAML 1.1 with
//! ways of its own. It says what the name is, not where it stands.

use serde::Deserialize;

use super::{BodyKind, Found, NAME, NameError};

/// What is not asked for is passed over, aliases too.
#[derive(Deserialize)]
struct Object {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<String>,
}

/// What YAML 1.2 found must be what stands there to the API server, which refuses what it cannot
/// read. Holds all parts of the body in memory.
pub(super) fn agrees(body: &str, found: Option<&Found>) -> Result<(), NameError> {
    let object: Object =
        serde_yaml::from_str(body).map_err(|_| NameError::Malformed(BodyKind::Yaml))?;
    let name = object.metadata.and_then(|metadata| metadata.name);
    if name.as_deref() == found.map(|found| found.name.as_str()) {
        Ok(())
    } else {
        Err(NameError::Indirect { field: NAME })
    }
}

//! The encoding of a response: chosen from `Accept` for our own, read from `Content-Type` for the
//! API server's (`apiserver/pkg/endpoints/handlers/negotiation`, and `munnerz/goautoneg` for the
//! order).

/// The encoding of objects. In a stream of watch events JSON and CBOR delimit themselves (RFC 8742
/// for CBOR), protobuf has a length of 4 bytes in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`; every Table, too.
    Json,
    /// `application/yaml`: never a stream.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
    /// `application/cbor`, as a stream `application/cbor-seq`.
    Cbor,
}

/// Most clauses of one `Accept` header that are read. Real clients send at most five.
const MAX_CLAUSES: usize = 64;

impl Encoding {
    /// The encoding of our response to a request with this `Accept` header. It follows the API
    /// server's rules for its own errors: the first acceptable clause in its order, in which a
    /// wildcard comes last whatever its `q`; JSON if there is none. Parameters such as `as=Table` apply to
    /// objects; a Status stays a Status.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let Some(accept) = accept.filter(|accept| !accept.is_empty()) else {
            return Self::Json;
        };
        let mut clauses: Vec<Clause<'_>> =
            accept.split(',').filter_map(Clause::parse).take(MAX_CLAUSES).collect();
        sort_as_upstream(&mut clauses);
        clauses.iter().find_map(Clause::encoding).unwrap_or(Self::Json)
    }

    /// The encoding of a body with this `Content-Type`; `None` if API objects have no such
    /// encoding.
    pub fn of_content_type(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let named = |name: &str| essence.eq_ignore_ascii_case(name);
        [
            ("application/json", Self::Json),
            ("application/vnd.kubernetes.protobuf", Self::Protobuf),
            ("application/cbor", Self::Cbor),
            ("application/cbor-seq", Self::Cbor),
            ("application/yaml", Self::Yaml),
        ]
        .into_iter()
        .find_map(|(name, encoding)| named(name).then_some(encoding))
    }

    /// The `Content-Type` of one object.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Cbor => "application/cbor",
        }
    }

    /// The `Content-Type` of a stream of watch events. YAML has none: a client that asks for it
    /// gets JSON.
    pub const fn stream_content_type(self) -> &'static str {
        match self {
            Self::Json | Self::Yaml => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Self::Cbor => "application/cbor-seq",
        }
    }
}

/// The `Accept` of a list that returns the same objects as a watch with this `Accept`.
pub fn as_list(accept: &str) -> String {
    let parameter = |text: &str| match trim(text) {
        "stream=watch" => None,
        "as=PartialObjectMetadata" => Some("as=PartialObjectMetadataList".to_owned()),
        other => Some(other.to_owned()),
    };
    let clause =
        |clause: &str| clause.split(';').filter_map(parameter).collect::<Vec<_>>().join(";");
    accept.split(',').map(clause).collect::<Vec<_>>().join(",")
}

/// One clause of an `Accept` header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    q: f32,
    /// The kind of stream asked for: only `watch` exists.
    stream: &'a str,
    /// The `sv` parameter, for the server's own version of the object: there is none.
    server_version: &'a str,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let essence = trim(parts.next()?);
        let (kind, subtype) = match essence.split_once('/') {
            Some((kind, subtype)) if !subtype.is_empty() => (trim(kind), trim(subtype)),
            // `*`, and `*/`, which the API server reads as the same.
            other => match other.map_or(essence, |(kind, _)| trim(kind)) {
                "*" => ("*", "*"),
                _ => return None,
            },
        };
        let subtype = match subtype.split_once('/') {
            None => subtype,
            Some((subtype, "")) => trim(subtype),
            Some(_) => return None,
        };
        let mut clause = Self { kind, subtype, q: 1.0, stream: "", server_version: "" };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.strip_suffix('=').unwrap_or(value);
            if value.is_empty() || value.contains('=') {
                continue;
            }
            match trim(name) {
                "q" => clause.q = value.parse().unwrap_or(0.0),
                "stream" => clause.stream = trim(value),
                "sv" => clause.server_version = trim(value),
                _ => {}
            }
        }
        Some(clause)
    }

    fn encoding(&self) -> Option<Encoding> {
        let encoding = match (self.kind, self.subtype) {
            ("*", "*") | ("application", "*" | "json") => Encoding::Json,
            ("application", "yaml") => Encoding::Yaml,
            ("application", "vnd.kubernetes.protobuf") => Encoding::Protobuf,
            // The API server has the sequence only in responses; a client that asks for it can read
            // it.
            ("application", "cbor" | "cbor-seq") => Encoding::Cbor,
            _ => return None,
        };
        let streams = match self.stream {
            "" => true,
            "watch" => encoding != Encoding::Yaml,
            _ => false,
        };
        (streams && self.server_version.is_empty()).then_some(encoding)
    }

    /// The API server's order, which is inconsistent: of two clauses each may come first. So the
    /// sort must be the same, too.
    fn before(&self, other: &Self) -> bool {
        self.q > other.q
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }
}

/// Sorts by insertion, as Go's `sort.Sort` for up to 12 elements.
fn sort_as_upstream(clauses: &mut [Clause<'_>]) {
    for end in 1..clauses.len() {
        for at in (1..=end).rev() {
            match clauses.get_mut(at - 1..=at) {
                Some([left, right]) if right.before(left) => std::mem::swap(left, right),
                _ => break,
            }
        }
    }
}

/// Trims only spaces, as the API server does.
fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

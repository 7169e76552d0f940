//! A method, a path and a query as the API server classifies them
//! (`apiserver/pkg/endpoints/request/requestinfo.go`).

use std::borrow::Cow;

use http::Method;
use strum::IntoStaticStr;

use super::escape::{Mode, unescape};
use super::options::ListOptions;
use super::query::{Query, QueryError};

/// One request, classified as the API server's own `RequestInfo` would classify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// The HTTP method.
    pub method: Method,
    /// The raw path.
    pub path: &'a str,
    /// The query, without the `?`.
    pub query: Query<'a>,
    /// The options in the query of a list, watch or deletecollection.
    pub options: ListOptions<'a>,
    /// The verb; the HTTP method if the target is not a resource.
    pub verb: Verb,
    /// The target of the verb.
    pub target: Target<'a>,
}

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<'a> {
    /// An API resource, one object or many.
    Resource(Resource<'a>),
    /// A path outside the API: health, discovery, metrics, version, OpenAPI, logs.
    NonResource,
}

/// The parts of a resource request, percent-decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resource<'a> {
    /// The API group; `""` for the core group (`/api`).
    pub group: Cow<'a, str>,
    /// The version: `v1`, `v1beta1`, ….
    pub version: Cow<'a, str>,
    /// The resource's plural, as in the path: `pods`.
    pub resource: Cow<'a, str>,
    /// The subresource: `status`, `scale`, `log`, `proxy`, ….
    pub subresource: Option<Cow<'a, str>>,
    /// The namespace. `None` for cluster-scoped resources and for requests over all namespaces. The
    /// namespace of a Namespace object is itself.
    pub namespace: Option<Cow<'a, str>>,
    /// The name of the one object. A list or watch has one if `fieldSelector` requires one
    /// `metadata.name`.
    pub name: Option<Cow<'a, str>>,
    /// The raw path behind the subresource, without the leading slash: arbitrary for `proxy`.
    pub rest: &'a str,
    /// Whether the verb is in the path (`/api/v1/watch/pods`, deprecated). Then `name` is from the
    /// path and `verb` not from the query.
    pub verb_in_path: bool,
}

/// The verb of the API server, in its spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs, reason = "each is its own name")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// `/api/v1/proxy/…`: removed in 1.16, still classified.
    Proxy,
    // These four are methods, for a target that is not a resource.
    Head,
    Post,
    Put,
    Options,
    /// The verb of any other method: `""` to the API server if it is a resource request.
    #[strum(serialize = "")]
    Other,
}

/// A path that an API server might read differently. Such a request is answered with 400, never
/// forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PathError {
    #[error("path must begin with /")]
    NotAbsolute,
    #[error("path has an empty segment (//)")]
    EmptySegment,
    /// `.` or `..`, also percent-encoded.
    #[error("path has a segment . or ..")]
    DotSegment,
    /// `%2F`, except behind `/proxy/`.
    #[error("path has an encoded slash (%2F) inside a segment")]
    EncodedSlash,
    #[error("path has broken percent-encoding")]
    BrokenEscape,
    #[error("path has an encoded NUL (%00)")]
    Nul,
    #[error("path is not UTF-8 when decoded")]
    NotUtf8,
    /// `/api/v1/watch`: the API server answers 500.
    #[error("path ends after its verb, a resource must follow")]
    NoResource,
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl<'a> RequestInfo<'a> {
    /// Classifies a request. `path` is the raw path of the request target, `query` the text behind
    /// its `?`.
    pub fn parse(
        method: &Method,
        path: &'a str,
        query: Option<&'a str>,
    ) -> Result<Self, PathError> {
        let query = Query::parse(query)?;
        let verb = Verb::of_method(method);
        let options = ListOptions::default();
        let method = method.clone();
        let non_resource = Self { method, path, query, options, verb, target: Target::NonResource };
        if path == "*" {
            return Ok(non_resource);
        }
        let mut segments = Segments::of(path)?;
        let Some(mut resource) = Resource::prefix(&mut segments)? else {
            segments.check_rest()?;
            return Ok(non_resource);
        };
        let first = segments.next()?.unwrap_or_default();
        let (path_verb, first) = match &*first {
            "proxy" => (Some(Verb::Proxy), segments.next()?.ok_or(PathError::NoResource)?),
            "watch" => (Some(Verb::Watch), segments.next()?.ok_or(PathError::NoResource)?),
            _ => (None, first),
        };
        resource.verb_in_path = path_verb.is_some();
        resource.parts(first, path_verb == Some(Verb::Proxy), &mut segments)?;
        let is_list = resource.name.is_none()
            && matches!(non_resource.method, Method::GET | Method::HEAD | Method::DELETE);
        let options = match is_list || path_verb == Some(Verb::Watch) {
            true => ListOptions::read(query),
            false => ListOptions::default(),
        };
        let verb = path_verb.unwrap_or_else(|| resource.verb(&non_resource.method, &options));
        Ok(Self { options, verb, target: Target::Resource(resource), ..non_resource })
    }

    /// The one namespace of the request: from its path, or as the field selector of a list or watch
    /// requires it.
    pub fn namespace(&self) -> Option<&str> {
        let by_options = || match self.verb {
            Verb::List | Verb::Watch => self.options.namespace(),
            _ => None,
        };
        self.resource()?.namespace.as_deref().or_else(by_options)
    }

    /// The path of the collection or object itself, without a verb in it.
    pub fn own_path(&self) -> Cow<'a, str> {
        let Some(resource) = self.resource().filter(|resource| resource.verb_in_path) else {
            return Cow::Borrowed(self.path);
        };
        // `/api/VERSION/watch`, `/apis/GROUP/VERSION/watch`.
        let verb = if resource.group.is_empty() { 3 } else { 4 };
        let kept = self.path.split('/').enumerate().filter(|(at, _)| *at != verb);
        Cow::Owned(kept.map(|(_, segment)| segment).collect::<Vec<_>>().join("/"))
    }

    /// The resource; `None` if the target is none.
    pub const fn resource(&self) -> Option<&Resource<'a>> {
        match &self.target {
            Target::Resource(resource) => Some(resource),
            Target::NonResource => None,
        }
    }

    /// The raw path of the collection of a list or watch. It lacks the verb and the name of a
    /// deprecated path. `None` if there is no collection.
    pub fn collection(&self) -> Option<String> {
        let resource = self.resource().filter(|resource| resource.subresource.is_none())?;
        let path = self.own_path();
        let path = path.trim_end_matches('/');
        let (collection, _name) = match resource.verb_in_path && resource.name.is_some() {
            true => path.rsplit_once('/')?,
            false => (path, ""),
        };
        Some(collection.to_owned())
    }
}

impl<'a> Resource<'a> {
    /// Reads `/api/VERSION/…` or `/apis/GROUP/VERSION/…` with at least one segment more; `None` if
    /// the path is not a resource.
    fn prefix(segments: &mut Segments<'a>) -> Result<Option<Self>, PathError> {
        let group = match segments.next()?.as_deref() {
            Some("api") => Cow::Borrowed(""),
            Some("apis") => match segments.next()? {
                Some(group) => group,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let version = segments.next()?;
        Ok(match version {
            Some(version) if !segments.at_end() => Some(Self { group, version, ..Self::default() }),
            _ => None,
        })
    }

    /// Reads `[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE[/…]]]`; `first` is already read.
    fn parts(
        &mut self,
        first: Cow<'a, str>,
        no_subresource: bool,
        segments: &mut Segments<'a>,
    ) -> Result<(), PathError> {
        self.resource = first;
        self.name = segments.next()?;
        let mut third = None;
        if self.resource == "namespaces" {
            self.namespace = self.name.clone();
            third = segments.next()?;
            // The segment behind a namespace is a resource, unless it is a subresource of
            // Namespace.
            if !matches!(third.as_deref(), None | Some("status" | "finalize")) {
                self.resource = third.take().unwrap_or_default();
                self.name = segments.next()?;
            }
        }
        if third.is_none() {
            third = segments.next()?;
        }
        if !no_subresource {
            self.subresource = third;
        }
        self.rest = segments.rest();
        if self.is_proxy() { Ok(()) } else { segments.check_rest() }
    }

    /// Whether the rest is a path of the proxied server.
    fn is_proxy(&self) -> bool {
        self.group.is_empty()
            && self.subresource.as_deref() == Some("proxy")
            && matches!(&*self.resource, "pods" | "services" | "nodes")
    }

    /// The verb of a method; sets the name that a field selector requires.
    fn verb(&mut self, method: &Method, options: &ListOptions<'_>) -> Verb {
        let named = self.name.is_some();
        match *method {
            Method::GET | Method::HEAD if named => Verb::Get,
            Method::GET | Method::HEAD => {
                self.name = options.name().map(|name| Cow::Owned(name.to_owned()));
                if options.is_watch() { Verb::Watch } else { Verb::List }
            }
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if named => Verb::Delete,
            Method::DELETE => Verb::DeleteCollection,
            _ => Verb::Other,
        }
    }
}

impl Verb {
    /// The API server's spelling.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    const fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::OPTIONS => Self::Options,
            _ => Self::Other,
        }
    }
}

/// The segments of a raw path, one at a time, each checked. One trailing slash is ignored, as by
/// the API server.
struct Segments<'a> {
    rest: Option<&'a str>,
    is_escaped: bool,
}

impl<'a> Segments<'a> {
    fn of(path: &'a str) -> Result<Self, PathError> {
        let path = path.strip_prefix('/').ok_or(PathError::NotAbsolute)?;
        let is_escaped = memchr::memchr(b'%', path.as_bytes()).is_some();
        Ok(Self { rest: Some(path).filter(|path| !path.is_empty()), is_escaped })
    }

    fn at_end(&self) -> bool {
        self.rest.is_none()
    }

    fn rest(&self) -> &'a str {
        self.rest.unwrap_or_default()
    }

    fn next(&mut self) -> Result<Option<Cow<'a, str>>, PathError> {
        let Some(rest) = self.rest else {
            return Ok(None);
        };
        let end = memchr::memchr(b'/', rest.as_bytes()).unwrap_or(rest.len());
        let (raw, tail) = rest.split_at_checked(end).unwrap_or((rest, ""));
        self.rest = tail.strip_prefix('/').filter(|tail| !tail.is_empty());
        match raw {
            "" | "." | ".." => segment(raw).map(Some),
            _ if self.is_escaped => segment(raw).map(Some),
            _ => Ok(Some(Cow::Borrowed(raw))),
        }
    }

    fn check_rest(&mut self) -> Result<(), PathError> {
        while self.next()?.is_some() {}
        Ok(())
    }
}

/// Decodes one segment; refuses one that another reader might read differently.
fn segment(raw: &str) -> Result<Cow<'_, str>, PathError> {
    let decoded = match unescape(raw, Mode::Path).map_err(|_| PathError::BrokenEscape)? {
        Cow::Borrowed(_) => Cow::Borrowed(raw),
        Cow::Owned(bytes) => {
            if memchr::memchr(b'/', &bytes).is_some() {
                return Err(PathError::EncodedSlash);
            }
            if memchr::memchr(0, &bytes).is_some() {
                return Err(PathError::Nul);
            }
            Cow::Owned(String::from_utf8(bytes).map_err(|_| PathError::NotUtf8)?)
        }
    };
    match &*decoded {
        "" => Err(PathError::EmptySegment),
        "." | ".." => Err(PathError::DotSegment),
        _ => Ok(decoded),
    }
}

//! From the address of a request to what it names.

use std::borrow::Cow;

use bowline_cluster::selector::Selector;
use http::request::Parts;

use super::object_store::{Refusal, Selection};

/// What a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Version,
    Discovery { is_core: bool },
    Resource { group: String, plural: String, namespace: String, name: Option<String> },
    Unknown,
}

/// Address of a request, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) target: Target,
    parameters: Vec<(String, String)>,
}

impl Route {
    pub(super) fn of(request: &Parts) -> Self {
        let query = request.uri.query().unwrap_or_default();
        let owned =
            |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        let parameters = form_urlencoded::parse(query.as_bytes()).map(owned).collect();
        Self { target: target(request.uri.path()), parameters }
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut all = self.parameters.iter();
        let found = all.find(|(other, value)| other == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub(super) fn values(&self, name: &str) -> Vec<String> {
        let same = self.parameters.iter().filter(|(other, _)| other == name);
        same.map(|(_, value)| value.clone()).collect()
    }

    pub(super) fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("true" | "1"))
    }

    pub(super) fn namespace(&self) -> &str {
        match &self.target {
            Target::Resource { namespace, .. } => namespace,
            _ => "",
        }
    }

    /// Objects that a list or a watch is about.
    pub(super) fn selection(&self) -> Result<Selection, Refusal> {
        let invalid = |text: String| Refusal::new(400, "BadRequest", text);
        let labels = self.parameter("labelSelector").map(Selector::parse).transpose();
        let labels = labels.map_err(|error| invalid(error.to_string()))?;
        let fields = self.parameter("fieldSelector").unwrap_or_default().split(',');
        let fields = fields
            .filter(|one| !one.is_empty())
            .map(|one| {
                let pair = one.split_once('=').ok_or_else(|| invalid(format!("field {one:?}")));
                pair.map(|(path, value)| {
                    (path.to_owned(), value.trim_start_matches('=').to_owned())
                })
            })
            .collect::<Result<_, _>>()?;
        let namespace = Some(self.namespace().to_owned()).filter(|name| !name.is_empty());
        Ok(Selection { namespace, labels, fields })
    }
}

fn target(path: &str) -> Target {
    let segments: Vec<String> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| {
            // A segment of a path has no `+` that means a space.
            let escaped = format!("s={}", segment.replace('+', "%2B"));
            let mut pairs = form_urlencoded::parse(escaped.as_bytes());
            pairs.next().map(|(_, value)| value.into_owned()).unwrap_or_default()
        })
        .collect();
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, rest) = match words[..] {
        ["version"] => return Target::Version,
        ["api"] => return Target::Discovery { is_core: true },
        ["apis"] => return Target::Discovery { is_core: false },
        ["api", _, ref rest @ ..] => ("", rest),
        ["apis", group, _, ref rest @ ..] => (group, rest),
        _ => return Target::Unknown,
    };
    // Subresources are parts of the object here: a status is patched like any other field.
    let (namespace, plural, name) = match rest {
        ["namespaces", namespace, plural] if *plural != "status" => (*namespace, *plural, None),
        ["namespaces", namespace, plural, name, ..] => (*namespace, *plural, Some(*name)),
        [plural] => ("", *plural, None),
        [plural, name, ..] => ("", *plural, Some(*name)),
        [] => return Target::Unknown,
    };
    Target::Resource {
        group: group.to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_names_a_kind_a_namespace_and_an_object() {
        let resource =
            |group: &str, plural: &str, namespace: &str, name: Option<&str>| Target::Resource {
                group: group.into(),
                plural: plural.into(),
                namespace: namespace.into(),
                name: name.map(str::to_owned),
            };
        for (path, expected) in [
            ("/version", Target::Version),
            ("/api", Target::Discovery { is_core: true }),
            ("/apis", Target::Discovery { is_core: false }),
            ("/api/v1/pods", resource("", "pods", "", None)),
            ("/api/v1/namespaces/a", resource("", "namespaces", "", Some("a"))),
            ("/api/v1/namespaces/a/pods", resource("", "pods", "a", None)),
            ("/api/v1/namespaces/a/pods/b%3Ac/exec", resource("", "pods", "a", Some("b:c"))),
            (
                "/apis/velero.io/v1/namespaces/a/backups/b",
                resource("velero.io", "backups", "a", Some("b")),
            ),
            ("/openapi/v3", Target::Unknown),
        ] {
            assert_eq!(target(path), expected, "{path}");
        }
    }
}

//! Identifiers and selectors of items.

use std::fmt;

/// Names one item.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceIdentifier {
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, plural: `persistentvolumeclaims`.
    pub resource: String,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ResourceIdentifier {
    /// `deployments.apps/namespace/name`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        for (separator, part) in [('.', &self.group), ('/', &self.namespace)] {
            if !part.is_empty() {
                write!(f, "{separator}{part}")?;
            }
        }
        write!(f, "/{}", self.name)
    }
}

/// The items that an action applies to. Empty lists select everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceSelector {
    /// Namespaces to include.
    pub included_namespaces: Vec<String>,
    /// Namespaces to exclude.
    pub excluded_namespaces: Vec<String>,
    /// Resources to include, as users may spell them: `pods`, `deploy`, `deployments.apps`.
    pub included_resources: Vec<String>,
    /// Resources to exclude.
    pub excluded_resources: Vec<String>,
    /// A label selector; empty selects all.
    pub label_selector: String,
}

impl ResourceSelector {
    /// Selects some resources in all namespaces.
    pub fn resources<S: Into<String>>(resources: impl IntoIterator<Item = S>) -> Self {
        let included_resources = resources.into_iter().map(Into::into).collect();
        Self { included_resources, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_displayed_like_kubectl() {
        let id = |group: &str, namespace: &str| ResourceIdentifier {
            group: group.into(),
            resource: "things".into(),
            namespace: namespace.into(),
            name: "one".into(),
        };
        assert_eq!(id("", "").to_string(), "things/one");
        assert_eq!(id("", "ns").to_string(), "things/ns/one");
        assert_eq!(id("apps", "ns").to_string(), "things.apps/ns/one");
    }
}

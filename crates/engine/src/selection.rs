//! Selection of items by actions.

use std::sync::Arc;

use bowline_plugin::{Name, ResourceSelector};
use futures::future::{BoxFuture, join_all};

use crate::action::NamedAction;
use crate::glob::{Glob, Globs, InvalidGlob};
use crate::item::Object;
use crate::report::{Report, ReportSubject};
use crate::resource::{Resource, Resources};
use crate::selector::{InvalidSelector, Selector};

/// Action with its selection.
pub(crate) struct Action<T: ?Sized> {
    pub(crate) name: Name,
    pub(crate) plugin: Arc<T>,
    /// True if the action may start operations.
    pub(crate) begins_operations: bool,
    selection: Selection,
}

impl<T: ?Sized> Action<T> {
    pub(crate) fn selects(&self, object: &Object) -> bool {
        self.selection.selects(object)
    }

    /// True if the action may select objects of a resource.
    pub(crate) fn may_select(&self, resource: &Resource) -> bool {
        self.selection.selects_kind(resource)
    }
}

/// Calls `AppliesTo` of all actions. An action that does not answer is reported and left out.
pub(crate) async fn resolve_selectors<T: ?Sized>(
    named: Vec<NamedAction<T>>,
    applies_to: impl for<'a> Fn(&'a T) -> BoxFuture<'a, bowline_plugin::Result<ResourceSelector>>,
    resources: &Resources,
    report: &Report,
) -> Vec<Action<T>> {
    let selectors = join_all(named.iter().map(|named| applies_to(&named.plugin))).await;
    select(named.into_iter().zip(selectors).collect(), resources, report)
}

fn select<T: ?Sized>(
    answers: Vec<(NamedAction<T>, bowline_plugin::Result<ResourceSelector>)>,
    resources: &Resources,
    report: &Report,
) -> Vec<Action<T>> {
    let mut actions = Vec::new();
    for (NamedAction { name, plugin, begins_operations }, selector) in answers {
        let reason = match selector {
            Ok(selector) => match Selection::new(&selector, resources) {
                Ok(selection) => {
                    actions.push(Action { name, plugin, begins_operations, selection });
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        report.error(
            ReportSubject::Run,
            format!("the action {name} is not used: its resource selector is not known: {reason}"),
        );
    }
    actions
}

/// Compiled selection of an action.
struct Selection {
    /// `None` for all kinds.
    included_kinds: Option<Globs>,
    excluded_kinds: Globs,
    /// `None` for all namespaces.
    included_namespaces: Option<Globs>,
    excluded_namespaces: Globs,
    labels: Selector,
}

#[derive(Debug, thiserror::Error)]
enum InvalidSelection {
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
    #[error(transparent)]
    Selector(#[from] InvalidSelector),
}

impl Selection {
    fn new(selector: &ResourceSelector, resources: &Resources) -> Result<Self, InvalidSelection> {
        let kind = |name: &String| match resources.resolve(name) {
            Some(resource) => Ok(Glob::literal(resource.id.to_string())),
            None => Glob::new(name),
        };
        let namespace = |name: &String| Glob::new(name);
        let ResourceSelector { included_namespaces, included_resources, .. } = selector;
        let included_kinds: Globs =
            included_resources.iter().map(kind).collect::<Result<_, _>>()?;
        let included_namespaces: Globs =
            included_namespaces.iter().map(namespace).collect::<Result<_, _>>()?;
        let some = |globs: Globs| (!globs.is_empty() && !globs.is_everything()).then_some(globs);
        Ok(Self {
            included_kinds: some(included_kinds),
            excluded_kinds: selector
                .excluded_resources
                .iter()
                .map(kind)
                .collect::<Result<_, _>>()?,
            included_namespaces: some(included_namespaces),
            excluded_namespaces: selector
                .excluded_namespaces
                .iter()
                .map(namespace)
                .collect::<Result<_, _>>()?,
            labels: Selector::parse(&selector.label_selector)?,
        })
    }

    fn selects(&self, object: &Object) -> bool {
        let included = self.included_namespaces.as_ref();
        let in_namespaces = match object.namespace.as_str() {
            // As in Velero: an action that selects namespaces does not select cluster-scoped
            // objects.
            "" => included.is_none() && self.excluded_namespaces.is_empty(),
            namespace => {
                included.is_none_or(|included| included.matches(namespace))
                    && !self.excluded_namespaces.matches(namespace)
            }
        };
        in_namespaces && self.selects_kind(&object.resource) && self.labels.matches(&object.labels)
    }

    fn selects_kind(&self, resource: &Resource) -> bool {
        let name = resource.id.to_string();
        self.included_kinds.as_ref().is_none_or(|included| included.matches(&name))
            && !self.excluded_kinds.matches(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::usual_resources;
    use bowline_plugin::Item;
    use serde_json::json;

    fn selects(selector: &ResourceSelector, kind: &str, namespace: &str) -> bool {
        let resources = Resources::new(usual_resources());
        let resource = resources.resolve(kind).unwrap();
        let mut metadata = json!({"name": "x", "labels": {"app": "x"}});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        let item = Item::from_object(&json!({"kind": kind, "metadata": metadata})).unwrap();
        let object = Object::new(resource, item).unwrap();
        Selection::new(selector, &resources).unwrap().selects(&object)
    }

    #[test]
    fn actions_see_what_they_select() {
        let all = ResourceSelector::default;
        let kinds = |names: &[&str]| ResourceSelector::resources(names.iter().copied());
        let list = |name: &str| vec![name.to_owned()];
        let rows = [
            (all(), "pods", "a", true),
            (all(), "pv", "", true),
            (kinds(&["po"]), "pods", "a", true),
            (kinds(&["po"]), "cm", "a", false),
            (kinds(&["deployments"]), "deploy", "a", true),
            (kinds(&["*.apps"]), "deploy", "a", true),
            (kinds(&["*"]), "pods", "a", true),
            (ResourceSelector { excluded_resources: list("pod"), ..all() }, "pods", "a", false),
            (ResourceSelector { included_namespaces: list("a*"), ..all() }, "pods", "ab", true),
            (ResourceSelector { included_namespaces: list("a*"), ..all() }, "pods", "b", false),
            (ResourceSelector { included_namespaces: list("a*"), ..all() }, "pv", "", false),
            (ResourceSelector { included_namespaces: list("*"), ..all() }, "pv", "", true),
            (ResourceSelector { excluded_namespaces: list("b"), ..all() }, "pods", "b", false),
            (ResourceSelector { excluded_namespaces: list("b"), ..all() }, "pods", "a", true),
            (ResourceSelector { excluded_namespaces: list("b"), ..all() }, "pv", "", false),
            (ResourceSelector { label_selector: "app=x".into(), ..all() }, "pods", "a", true),
            (ResourceSelector { label_selector: "app!=x".into(), ..all() }, "pods", "a", false),
        ];
        for (selector, kind, namespace, expected) in rows {
            let selected = selects(&selector, kind, namespace);
            assert_eq!(selected, expected, "{selector:?} {kind} {namespace}");
        }
    }

    #[test]
    fn action_without_a_usable_selector_is_reported_and_excluded() {
        let report = Report::default();
        let named = NamedAction::new("example.io/a".parse().unwrap(), Arc::new(()));
        let answers = vec![(named, Err(bowline_plugin::Error::unknown("it died")))];
        assert!(select(answers, &Resources::default(), &report).is_empty());
        let errors = report.results().errors.velero;
        assert!(errors[0].contains("example.io/a") && errors[0].contains("it died"), "{errors:?}");
    }
}

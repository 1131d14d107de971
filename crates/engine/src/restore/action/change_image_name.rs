//! Images that have another name in the target cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::lookup::{CachedLookup, Lookup, cached_or_read};
use super::{CHANGE_IMAGE_NAME, edit};
use crate::json::{elements_mut, text};

/// Renames the images of containers according to a ConfigMap.
///
/// If several rules match an image, the first one by ConfigMap key applies; in Velero, any of them.
pub(super) struct ChangeImageName {
    lookup: Arc<Lookup>,
    rules: CachedLookup<Vec<Rule>>,
}

/// One entry of the ConfigMap: `old,new`.
#[derive(Debug, PartialEq)]
struct Rule {
    /// A part of image names.
    old: String,
    /// Its replacement.
    new: String,
}

impl Rule {
    fn parse(row: &str) -> Option<Self> {
        let (old, new) = row.split_once(',')?;
        let rule = Self { old: old.trim().to_owned(), new: new.trim().to_owned() };
        // An empty part matches before each letter of every name. Velero replaces it.
        (!rule.old.is_empty() && !new.is_empty()).then_some(rule)
    }
}

fn rules(config: &BTreeMap<String, String>) -> Vec<Rule> {
    let rule = |(key, row): (&String, &String)| {
        let rule = Rule::parse(row);
        if rule.is_none() {
            tracing::warn!("row {key:?} for {CHANGE_IMAGE_NAME} is ignored: expected `old,new`");
        }
        rule
    };
    config.iter().filter_map(rule).collect()
}

fn change(object: &mut Value, rules: &[Rule]) -> bool {
    let spec = match text(object, "/kind") {
        "Pod" => "/spec",
        "CronJob" => "/spec/jobTemplate/spec/template/spec",
        _ => "/spec/template/spec",
    };
    let mut changed = false;
    for list in ["containers", "initContainers"] {
        for container in elements_mut(object, &format!("{spec}/{list}")) {
            let Some(image) = container.get_mut("image") else { continue };
            let name = image.as_str().unwrap_or_default();
            if let Some(rule) = rules.iter().find(|rule| name.contains(&rule.old)) {
                *image = name.replace(&rule.old, &rule.new).into();
                changed = true;
            }
        }
    }
    changed
}

impl ChangeImageName {
    pub(super) fn new(lookup: &Arc<Lookup>) -> Self {
        Self { lookup: Arc::clone(lookup), rules: CachedLookup::new() }
    }
}

#[async_trait]
impl RestoreItemAction for ChangeImageName {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources([
            "deployments",
            "statefulsets",
            "daemonsets",
            "replicasets",
            "replicationcontrollers",
            "jobs",
            "cronjobs",
            "pods",
        ]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        let read = async { Ok(rules(&self.lookup.config(CHANGE_IMAGE_NAME).await?)) };
        let rules = cached_or_read(&self.rules, read).await?;
        if rules.is_empty() {
            return Ok(RestoreOutput::unchanged(item));
        }
        edit(item, |object| Ok(change(object, rules)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{changes, execute, lookup_in, plugin_config};
    use super::*;
    use crate::cluster::{self, Fake};
    use serde_json::json;

    #[test]
    fn rule_is_old_and_new_separated_by_a_comma() {
        let rule = |old: &str, new: &str| Some(Rule { old: old.into(), new: new.into() });
        for (row, expected) in [
            ("a,b", rule("a", "b")),
            (" 1.1.1.1:5000 , 2.2.2.2:3000 ", rule("1.1.1.1:5000", "2.2.2.2:3000")),
            ("a,b,c", rule("a", "b,c")),
            ("a/, ", rule("a/", "")),
            ("a", None),
            ("a,", None),
            (",b", None),
            (" ,b", None),
            ("", None),
        ] {
            assert_eq!(Rule::parse(row), expected, "{row:?}");
        }
    }

    #[test]
    fn images_are_renamed_wherever_a_kind_has_them() {
        let rules = ["r1:5000,r2:3000", "app,web", "r1,never"].map(|row| Rule::parse(row).unwrap());
        let spec = |images: [&str; 3]| {
            json!({
                "containers": [{"image": images[0]}, {"image": images[1]}, {"name": "none"}],
                "initContainers": [{"image": images[2]}],
            })
        };
        let before = || spec(["r1:5000/app:1", "other/app-app", "other/db"]);
        // Only the first matching rule applies, at all places where it matches.
        let after = || spec(["r2:3000/app:1", "other/web-web", "other/db"]);
        let within = |kind: &str, spec: Value| match kind {
            "Pod" => json!({"kind": kind, "spec": spec}),
            "CronJob" => json!({
                "kind": kind,
                "spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}},
            }),
            _ => json!({"kind": kind, "spec": {"template": {"spec": spec}}}),
        };
        let change = |object: &mut Value| change(object, &rules);
        for kind in ["Pod", "CronJob", "Deployment", "StatefulSet", "Job", "ReplicationController"]
        {
            changes(change, [(kind, within(kind, before()), Some(within(kind, after())))]);
        }
        let db = || json!({"containers": [{"image": "db"}, {"image": 1}, "x"]});
        changes(
            change,
            [
                ("no rule fits", within("Pod", db()), None),
                ("no containers", json!({"kind": "Pod", "spec": {}}), None),
            ],
        );
    }

    fn deployment() -> Value {
        let spec = json!({"containers": [{"name": "a", "image": "old/app"}]});
        json!({"kind": "Deployment", "spec": {"template": {"spec": spec}}})
    }

    #[tokio::test]
    async fn the_rules_are_read_once_from_the_config_map_with_the_labels() {
        let rules =
            plugin_config("rules", CHANGE_IMAGE_NAME, &json!({"x": "old,new", "y": "no rule"}));
        let mut elsewhere = plugin_config("rules", CHANGE_IMAGE_NAME, &json!({"x": "old,wrong"}));
        elsewhere["metadata"]["namespace"] = "elsewhere".into();
        let other_action = plugin_config("other", "velero.io/other", &json!({"x": "old,wrong"}));
        let fake = Fake::usual().with(rules).with(elsewhere).with(other_action);
        let (fake, lookup) = lookup_in(fake);
        let action = ChangeImageName::new(&lookup);
        for _ in 0..3 {
            let output = execute(&action, &deployment(), &Restore::default()).await.unwrap();
            let renamed: Value = output.item.parse().unwrap();
            assert_eq!(text(&renamed, "/spec/template/spec/containers/0/image"), "new/app");
        }
        assert_eq!(fake.lists().len(), 1);
    }

    #[tokio::test]
    async fn without_a_config_map_or_rules_nothing_changes() {
        let none = Fake::usual();
        let empty = Fake::usual().with(plugin_config("a", CHANGE_IMAGE_NAME, &json!(null)));
        for fake in [none, empty] {
            let (fake, lookup) = lookup_in(fake);
            let action = ChangeImageName::new(&lookup);
            for _ in 0..2 {
                let output = execute(&action, &deployment(), &Restore::default()).await.unwrap();
                assert_eq!(output.item, Item::from_object(&deployment()).unwrap());
            }
            assert_eq!(fake.lists().len(), 1);
        }
    }

    #[tokio::test]
    async fn two_config_maps_are_an_error_and_so_is_one_that_cannot_be_read() {
        let of = |name| plugin_config(name, CHANGE_IMAGE_NAME, &json!({"x": "old,new"}));
        let (_, lookup) = lookup_in(Fake::usual().with(of("a")).with(of("b")));
        let action = ChangeImageName::new(&lookup);
        let error = execute(&action, &deployment(), &Restore::default()).await.unwrap_err();
        assert_eq!(
            error.message(),
            "found more than one ConfigMap matching label selector \
             \"velero.io/plugin-config,velero.io/change-image-name=RestoreItemAction\", among them \
             a and b: remove the labels from all but one"
        );

        let (fake, lookup) = lookup_in(Fake::usual());
        fake.fail_list("configmaps", 0, || cluster::Error::Unreachable("no route".into()));
        let action = ChangeImageName::new(&lookup);
        let error = execute(&action, &deployment(), &Restore::default()).await.unwrap_err();
        assert!(error.message().starts_with(
            "cannot read the ConfigMap for velero.io/change-image-name: the API server cannot be"
        ));
    }
}

//! ServiceAccounts: adds their cluster-wide permissions.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ItemBlockAction, ResourceIdentifier,
    ResourceSelector, Result,
};
use serde::Deserialize;

use super::lazy::Lazy;
use super::{Reader, id, unreadable_item_error};
use crate::cluster::Query;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Adds the ClusterRoleBindings that name a ServiceAccount, and their ClusterRoles, to the backup
/// and to its item block.
pub(super) struct ServiceAccount {
    reader: Reader,
    bindings: Lazy<Bindings>,
}

/// ClusterRoleBindings with ServiceAccounts as subjects.
#[derive(Default)]
struct Bindings {
    /// Names of each binding and of its role.
    all: Vec<(Box<str>, Box<str>)>,
    /// Indices into `all`, by namespace and name of a ServiceAccount.
    by_subject: HashMap<String, HashMap<String, Vec<usize>>>,
}

/// Parsed fields of a binding.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Binding {
    role_ref: RoleRef,
    subjects: Option<Vec<Subject>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RoleRef {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    namespace: String,
    name: String,
}

impl Bindings {
    fn add(&mut self, name: &str, binding: Binding) {
        let index = self.all.len();
        for subject in binding.subjects.into_iter().flatten() {
            if subject.kind != "ServiceAccount" {
                continue;
            }
            let names = self.by_subject.entry(subject.namespace).or_default();
            let indexes = names.entry(subject.name).or_default();
            if indexes.last() != Some(&index) {
                indexes.push(index);
            }
            if self.all.len() == index {
                self.all.push((name.into(), binding.role_ref.name.as_str().into()));
            }
        }
    }

    fn related_to(&self, namespace: &str, name: &str) -> Vec<ResourceIdentifier> {
        let indexes = self.by_subject.get(namespace).and_then(|names| names.get(name));
        let found = indexes.into_iter().flatten().filter_map(|place| self.all.get(*place));
        let (mut bindings, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for (binding, role) in found {
            bindings.insert(binding);
            roles.insert(role);
        }
        let bindings = bindings.into_iter().map(|name| id(RBAC, "clusterrolebindings", "", name));
        let roles = roles.into_iter().map(|name| id(RBAC, "clusterroles", "", name));
        bindings.chain(roles).collect()
    }
}

impl ServiceAccount {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, bindings: Lazy::default() }
    }

    async fn related(&self, item: &Item) -> Result<Vec<ResourceIdentifier>> {
        #[derive(Deserialize)]
        struct Account {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            namespace: String,
            name: String,
        }
        let account: Account =
            serde_json::from_slice(item.json()).map_err(|error| unreadable_item_error(&error))?;
        let bindings = self.bindings.get(self.list()).await?;
        Ok(bindings.related_to(&account.metadata.namespace, &account.metadata.name))
    }

    async fn list(&self) -> Result<Bindings> {
        let mut bindings = Bindings::default();
        let add_binding = |object: &crate::Object| {
            bindings.add(&object.name, serde_json::from_slice(object.item.json())?);
            Ok(())
        };
        self.reader
            .for_each_object(RBAC, "clusterrolebindings", Query::default(), add_binding)
            .await?;
        Ok(bindings)
    }
}

#[async_trait]
impl BackupItemAction for ServiceAccount {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["serviceaccounts"]))
    }

    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
        let additional_items = self.related(item).await?;
        Ok(BackupOutput { additional_items, ..BackupOutput::unchanged(item) })
    }
}

#[async_trait]
impl ItemBlockAction for ServiceAccount {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["serviceaccounts"]))
    }

    async fn get_related_items(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        self.related(item).await
    }
}

//! Turns an item of the archive into the object to write, for a restore and for its dry run.
//!
//! There are two halves, since the namespace of an item is created in between: [`ItemRestore::read_item`] reads the
//! item and applies the filters, [`ItemRestore::prepare_object`] resets it, runs the actions and makes the requested
//! changes.

use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use serde_json::Value;

use super::super::filter::{self, Reason, RestoreVerdict};
use super::super::item_journal::ActionsOutcome;
use super::super::version::ChosenVersion;
use super::super::volume::{self, BlockingVolume, PreparedVolume};
use super::super::{collision, reset};
use super::{ItemError, ItemRestore, SkipReason, VisitReason};
use crate::item::Object;
use crate::json;
use crate::resource::{GroupResource, Resource};

/// Classification of an item of the archive.
pub(in crate::restore) enum ArchiveItem {
    /// Excluded by the filters.
    Excluded(Reason),
    /// A Namespace, which has rules of its own. Its target is set.
    Namespace,
    /// Excluded because of its content, such as a completed pod.
    ContentExcluded(Reason),
    /// An object to restore.
    Object(Box<StoredObject>),
}

/// An object as stored in the archive.
pub(in crate::restore) struct StoredObject {
    pub(in crate::restore) kind: GroupResource,
    pub(in crate::restore) object: Object,
    /// Target namespace; empty for cluster-scoped objects.
    pub(in crate::restore) namespace: String,
    value: Value,
    /// True if the filters select the item itself, so that it is not only an additional item.
    is_selected: bool,
}

/// Result of the preparation of an object.
pub(in crate::restore) enum PreparedItem {
    /// The item is not restored, with the reason.
    Skipped(SkipReason),
    /// Another object must be deleted first. Only in a dry run, which does not wait.
    Waiting(BlockingVolume),
    /// The object to write.
    Ready(Box<ReadyObject>),
}

/// An object that is ready to be written.
pub(in crate::restore) struct ReadyObject {
    pub(in crate::restore) resource: Arc<Resource>,
    pub(in crate::restore) namespace: String,
    pub(in crate::restore) value: Value,
    /// The backed-up status.
    pub(in crate::restore) status: Option<Value>,
    /// The backed-up field ownership, if it is to be written back.
    pub(in crate::restore) managed_fields: Option<Value>,
}

impl ItemRestore<'_> {
    /// Reads the item and classifies it.
    pub(in crate::restore) fn read_item(
        &mut self,
        reason: VisitReason<'_>,
    ) -> Result<ArchiveItem, ItemError> {
        let Self { context, served_api, id, .. } = *self;
        let kind = GroupResource::new(&id.group, &id.resource);
        let verdict = match reason {
            VisitReason::Scheduled => served_api.filter.location(&kind, &id.namespace, &id.name),
            VisitReason::NeededBy { must_be_included, .. } => {
                served_api.filter.additional(&kind, &id.namespace, &id.name, must_be_included)
            }
        };
        if let RestoreVerdict::Skip(reason) = verdict {
            return Ok(ArchiveItem::Excluded(reason));
        }
        let is_selected = match reason {
            VisitReason::Scheduled => true,
            VisitReason::NeededBy { .. } => {
                served_api.filter.location(&kind, &id.namespace, &id.name).is_restore()
                    || served_api.filter.includes_by_name(&kind)
            }
        };
        let stored = context.contents.kind(&kind).ok_or(ItemError::NotInBackup)?;
        let ChosenVersion { resource, stored: version } =
            match served_api.versions.choose(&kind, stored) {
                Ok(chosen) => chosen,
                Err(not_served) => match self.convertible(&kind) {
                    Some(resource) => {
                        self.not_served = Some(not_served);
                        ChosenVersion { resource, stored: None }
                    }
                    None => return Err(not_served.into()),
                },
            };
        let version = version.as_deref();
        let object = context.contents.object(&resource, version, &id.namespace, &id.name)?;
        if let (VisitReason::Scheduled, RestoreVerdict::Skip(reason)) =
            (reason, served_api.filter.labels(&kind, &object.labels))
        {
            return Ok(ArchiveItem::Excluded(reason));
        }
        if object.resource.is_core("namespaces") {
            let name = context.request.target(&id.name).to_owned();
            self.target = Some((Arc::clone(&object.resource), String::new(), name));
            return Ok(ArchiveItem::Namespace);
        }
        let namespace = context.request.target(&id.namespace).to_owned();
        self.target = Some((Arc::clone(&object.resource), namespace.clone(), id.name.clone()));
        let value: Value = object.item.parse()?;
        if let RestoreVerdict::Skip(reason) = filter::check_content(&kind, &value) {
            return Ok(ArchiveItem::ContentExcluded(reason));
        }
        Ok(ArchiveItem::Object(Box::new(StoredObject {
            kind,
            object,
            namespace,
            value,
            is_selected,
        })))
    }

    /// Stand-in for a kind that the cluster does not serve, if an action or a modifier may convert the item to a kind
    /// that it does serve.
    fn convertible(&self, kind: &GroupResource) -> Option<Arc<Resource>> {
        let Self { context, id, .. } = *self;
        let resource = context.contents.resource(kind, &id.namespace, &id.name)?;
        let is_handled = context.actions.iter().any(|action| action.may_select(&resource));
        let modifiers = context.request.modifiers.as_ref();
        (is_handled || modifiers.is_some_and(|modifiers| modifiers.may_apply_to(kind)))
            .then(|| Arc::new(resource))
    }

    /// Computes the object to write: resets the item and runs the actions. Their additional items are visited
    /// first.
    pub(in crate::restore) async fn prepare_object(
        &mut self,
        stored: StoredObject,
    ) -> Result<PreparedItem, ItemError> {
        let StoredObject { kind, object, namespace, mut value, is_selected } = stored;
        let context = self.context;
        if object.resource.is_core("persistentvolumes") {
            value = match volume::prepare_volume(context, self.id, value, is_selected).await? {
                PreparedVolume::Create(value) => value,
                PreparedVolume::FromSnapshot(value, restored_volume) => {
                    self.restored_volume = Some(restored_volume);
                    value
                }
                PreparedVolume::Skip(reason) => return Ok(PreparedItem::Skipped(reason)),
                PreparedVolume::Wait(reason) => return Ok(PreparedItem::Waiting(reason)),
            };
        }
        let status = reset::reset_metadata_and_status(&mut value)?;
        reset::remove_must_include(&mut value);
        let mut value = match self.run_actions_journaled(&object, value).await? {
            ActionsOutcome::Changed(value) => value,
            ActionsOutcome::Skipped(reason) => return Ok(PreparedItem::Skipped(reason)),
        };
        volume::require_source(context, self.id, &object, &mut value)?;
        if object.resource.is_core("persistentvolumeclaims") {
            volume::reset_claim(context, self.id, &mut value)?;
        }
        self.apply_changes(&kind, &mut value, &namespace)?;
        let managed_fields = reset::remove_managed_fields(&mut value);
        let (resource, namespace, _) = self.target.clone().ok_or(ItemError::NoTarget)?;
        Ok(PreparedItem::Ready(Box::new(ReadyObject {
            resource,
            namespace,
            value,
            status,
            managed_fields,
        })))
    }

    /// Applies modifiers, namespace and labels, and determines the resulting resource.
    fn apply_changes(
        &mut self,
        stored: &GroupResource,
        value: &mut Value,
        target: &str,
    ) -> Result<(), ItemError> {
        let Self { context, served_api, id, .. } = *self;
        if let Some(modifiers) = &context.request.modifiers {
            for error in modifiers.apply(stored, value) {
                context.report.error(id, format!("a resource modifier failed: {error}"));
            }
        }
        reset::set_namespace(value, target)?;
        let (backup, restore) = (&context.request.backup_name, &context.request.name);
        reset::set_restore_labels(value, backup.as_str(), restore.as_str())?;
        let text = |pointer: &str| json::text(value, pointer).to_owned();
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        // An item that was not converted is reported under its stored kind.
        let resource = served_api.versions.of_kind(&api_version, &kind);
        let resource = resource.map_err(|error| self.not_served.take().unwrap_or(error))?;
        let namespace =
            if resource.is_namespaced { text("/metadata/namespace") } else { String::new() };
        let name = text("/metadata/name");
        let has_moved = name != id.name || resource.id != *stored;
        let is_restored = |other: &ResourceIdentifier| {
            let verdict = served_api.filter.location(stored, &other.namespace, &other.name);
            verdict.is_restore() && context.contents.has(other)
        };
        let needs_origin =
            has_moved || context.collisions.has_conflicting_item(id, target, is_restored);
        collision::set_origin(value, needs_origin.then_some(id));
        self.target = Some((resource, namespace, name));
        Ok(())
    }
}

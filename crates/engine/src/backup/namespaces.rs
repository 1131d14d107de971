//! The Namespace objects.
//!
//! They are listed first, since their number decides how the other objects are listed, and stored after those: a
//! namespace that was not selected is in the backup as well if something in it is.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use futures::StreamExt as _;
use serde::Deserialize;

use super::filter::FilterVerdict;
use super::item::{self, ItemOrigin, Sink};
use super::spool::SpoolRange;
use super::{Context, FatalError};
use crate::cluster::Query;
use crate::item::Object;
use crate::report::ReportSubject;
use crate::resource::Resource;

/// A Namespace that waits on disk until everything else is stored.
#[derive(Debug)]
pub(super) struct SpooledNamespace {
    name: Box<str>,
    spool_range: SpoolRange,
}

/// All namespaces.
pub(super) async fn list(context: &Context) -> Result<Vec<SpooledNamespace>, FatalError> {
    let Some(resource) = context.resources.core("namespaces") else { return Ok(Vec::new()) };
    let mut listed = context.cluster.list(resource, Query::default());
    let mut namespaces = Vec::new();
    while let Some(namespace) = listed.next().await {
        let namespace = namespace.map_err(FatalError::Namespaces)?;
        let spool_range = context.spool.put(&namespace.item).map_err(FatalError::Scratch)?;
        namespaces.push(SpooledNamespace { name: namespace.name.into(), spool_range });
    }
    Ok(namespaces)
}

/// Stores the selected namespaces, and those in which items were found.
pub(super) async fn store(context: &Context, namespaces: Vec<SpooledNamespace>, sink: &Sink<'_>) {
    #[derive(Deserialize)]
    struct Namespace {
        #[serde(default)]
        status: Status,
    }
    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        phase: String,
    }
    let Some(resource) = context.resources.core("namespaces") else { return };
    if matches!(context.filter.kind(resource), FilterVerdict::Skip(_)) {
        return;
    }
    for SpooledNamespace { name, spool_range } in &namespaces {
        let namespace = match read_spooled(context, resource, *spool_range) {
            Ok(namespace) => namespace,
            Err(error) => {
                let text = format!(
                    "the namespace {name} itself is not in the backup, because it cannot be read \
                     from the scratch directory: {error}"
                );
                context.report.error(ReportSubject::Run, text);
                continue;
            }
        };
        let read = namespace.item.parse::<Namespace>();
        let is_active = read.is_ok_and(|namespace| namespace.status.phase == "Active");
        let verdict = context.filter.keeps_namespace_object(
            &namespace.name,
            &namespace.labels,
            is_active,
            &context.request.selectors,
        );
        if matches!(verdict, FilterVerdict::Include) || context.namespaces.has(&namespace.name) {
            item::visit(context, namespace, ItemOrigin::required(), sink).await;
        }
    }
    let listed: HashSet<&str> = namespaces.iter().map(|namespace| &*namespace.name).collect();
    // Namespaces that have been created since the list.
    for name in context.namespaces.touched() {
        if listed.contains(name.as_str()) || context.has_stopped() {
            continue;
        }
        match context.cluster.get(resource, "", &name).await {
            Ok(Some(namespace)) => {
                item::visit(context, namespace, ItemOrigin::required(), sink).await;
            }
            // The namespace was deleted meanwhile.
            Ok(None) => {}
            Err(error) => context.report.error(
                ReportSubject::Run,
                format!("the namespace {name} itself is not in the backup: {error}"),
            ),
        }
    }
}

fn read_spooled(
    context: &Context,
    resource: &Arc<Resource>,
    spool_range: SpoolRange,
) -> io::Result<Object> {
    let item = context.spool.get(spool_range)?;
    Object::new(resource, item).map_err(io::Error::other)
}

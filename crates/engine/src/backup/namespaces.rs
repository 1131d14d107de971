//! The Namespace objects.
//!
//! They are listed first, since their number decides how the other objects are listed, and stored after those: a
//! namespace that was not selected is in the backup as well if something in it is.

use std::collections::HashSet;

use futures::StreamExt as _;
use serde::Deserialize;

use super::filter::FilterVerdict;
use super::item::{self, ItemOrigin, Sink};
use super::{Context, FatalError};
use crate::cluster::Query;
use crate::item::Object;
use crate::report::ReportSubject;

/// All namespaces, which are few.
pub(super) async fn list(context: &Context) -> Result<Vec<Object>, FatalError> {
    let Some(resource) = context.resources.core("namespaces") else { return Ok(Vec::new()) };
    let mut listed = context.cluster.list(resource, Query::default());
    let mut namespaces = Vec::new();
    while let Some(namespace) = listed.next().await {
        namespaces.push(namespace.map_err(FatalError::Namespaces)?);
    }
    Ok(namespaces)
}

/// Stores the selected namespaces, and those in which items were found.
pub(super) async fn store(context: &Context, namespaces: Vec<Object>, sink: &Sink<'_>) {
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
    let listed: HashSet<String> =
        namespaces.iter().map(|namespace| namespace.name.clone()).collect();
    for namespace in namespaces {
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
    // Namespaces that have been created since the list.
    for name in context.namespaces.touched() {
        if listed.contains(&name) || context.has_stopped() {
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

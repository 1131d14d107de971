//! Services: values allocated by the original cluster are removed, values chosen by users stay.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{
    Code, Encoded, Error, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde_json::Value;

use super::edit;
use crate::json::{annotation, elements, elements_mut, remove, text};

/// Removes cluster IPs, and node ports unless they are to be preserved or a user chose them. IP families stay: they
/// determine the kind of the new addresses.
///
/// The last-applied configuration shows which ports a user chose, if there is one, otherwise the ownership of the
/// fields.
pub(super) struct Service;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Node ports that a user chose.
enum UserNodePorts {
    /// Ports of the last-applied configuration: names, and numbers of ports without a name.
    Applied { names: HashSet<String>, numbers: HashSet<u64> },
    /// Ports whose field has an owner. The API server does not count as one.
    Owned(HashSet<String>),
}

impl UserNodePorts {
    fn of(service: &Value, applied: Option<&Value>) -> Result<Self> {
        match applied {
            Some(applied) => Self::applied(applied),
            None => Ok(Self::owned(service)),
        }
    }

    fn applied(applied: &Value) -> Result<Self> {
        let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
        for port in elements(applied, "/spec/ports") {
            let number = match port.get("nodePort") {
                // Old clients wrote numbers as strings.
                Some(Value::String(number)) => number.parse().map_err(|_| {
                    let message =
                        format!("annotation {LAST_APPLIED} has a nodePort that is not a number");
                    Error::new(Code::InvalidArgument, message)
                })?,
                number => number.and_then(Value::as_u64).unwrap_or_default(),
            };
            match text(port, "/name") {
                _ if number == 0 => {}
                "" => drop(numbers.insert(number)),
                name => drop(names.insert(name.to_owned())),
            }
        }
        Ok(Self::Applied { names, numbers })
    }

    fn owned(service: &Value) -> Self {
        let ports = owned_specs(service).filter_map(|spec| spec.get("f:ports")?.as_object());
        let owned = ports.flatten().filter(|(_, port)| port.get("f:nodePort").is_some());
        Self::Owned(owned.map(|(key, _)| key.clone()).collect())
    }

    fn has(&self, port: &Value) -> bool {
        match self {
            Self::Applied { names, numbers } => match text(port, "/name") {
                "" => port["nodePort"].as_u64().is_some_and(|number| numbers.contains(&number)),
                name => names.contains(name),
            },
            Self::Owned(keys) => {
                let protocol = port["protocol"].as_str().unwrap_or("TCP");
                keys.contains(&format!(r#"k:{{"port":{},"protocol":"{protocol}"}}"#, port["port"]))
            }
        }
    }
}

/// The `spec` part of each entry of `managedFields`.
fn owned_specs(service: &Value) -> impl Iterator<Item = &Value> {
    elements(service, "/metadata/managedFields")
        .filter_map(|entry| entry.pointer("/fieldsV1/f:spec"))
}

fn last_applied(service: &Value) -> Result<Option<Value>> {
    let Some(applied) = annotation(service, LAST_APPLIED) else { return Ok(None) };
    serde_json::from_str(applied).map(Some).map_err(|error| {
        let message = format!("annotation {LAST_APPLIED} is not JSON: {error}");
        Error::new(Code::InvalidArgument, message)
    })
}

fn change(service: &mut Value, preserve_node_ports: bool) -> Result<bool> {
    // A headless Service stays headless.
    let is_headless = text(service, "/spec/clusterIP") == "None";
    let mut changed = !is_headless && remove(service, "/spec", &["clusterIP", "clusterIPs"]);
    if !preserve_node_ports {
        let applied = last_applied(service)?;
        changed |= remove_node_ports(service, applied.as_ref())?;
        changed |= remove_health_check_port(service, applied.as_ref());
    }
    Ok(changed)
}

fn remove_node_ports(service: &mut Value, applied: Option<&Value>) -> Result<bool> {
    if text(service, "/spec/type") == "ExternalName" {
        return Ok(false);
    }
    let user_ports = UserNodePorts::of(service, applied)?;
    let mut changed = false;
    for port in elements_mut(service, "/spec/ports").filter(|port| !user_ports.has(port)) {
        changed |= remove(port, "", &["nodePort"]);
    }
    Ok(changed)
}

fn remove_health_check_port(service: &mut Value, applied: Option<&Value>) -> bool {
    let has_one = text(service, "/spec/type") == "LoadBalancer"
        && text(service, "/spec/externalTrafficPolicy") == "Local";
    let applied = applied.and_then(|applied| applied.pointer("/spec/healthCheckNodePort"));
    let is_applied = applied.and_then(Value::as_u64).is_some_and(|port| port != 0);
    let is_owned = owned_specs(service).any(|spec| spec.get("f:healthCheckNodePort").is_some());
    has_one && !is_applied && !is_owned && remove(service, "/spec", &["healthCheckNodePort"])
}

#[async_trait]
impl RestoreItemAction for Service {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["services"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let preserve_node_ports = restore.spec.preserve_node_ports == Some(true);
        edit(item, |service| change(service, preserve_node_ports))
    }
}

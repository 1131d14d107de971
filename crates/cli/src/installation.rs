//! The installation that a command uses: a cluster, and the namespace of the server in it.

use std::time::Duration;

use anyhow::anyhow;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use tokio::time::timeout;

use crate::args::InstallationArgs;
use crate::{client_config, cluster, program, tls_trust};

/// Longest wait for an answer of the API server.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(30);

/// Cluster and namespace of the objects.
#[derive(Clone)]
pub(crate) struct Installation {
    client: Client,
    namespace: String,
    /// Flag that selects the same namespace, for hints.
    namespace_flag: String,
}

impl Installation {
    /// Resolves the flags. Sends no request yet.
    pub(crate) async fn connect(args: &InstallationArgs) -> anyhow::Result<Self> {
        let namespace = client_config::namespace(args.namespace.as_deref())?;
        let flag = args.namespace.as_ref().map(|name| format!(" -n {name}")).unwrap_or_default();
        Ok(Self { client: cluster::client(&args.cluster).await?, namespace, namespace_flag: flag })
    }

    /// The installation in a namespace of a cluster.
    #[cfg(test)]
    pub(crate) fn with_client(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), namespace_flag: String::new() }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Objects of a kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of a cluster-scoped kind.
    pub(crate) fn cluster_api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Next command to suggest to the user, for the same installation.
    pub(crate) fn hint(&self, command: &str) -> String {
        format!("`{} {command}{}`", program::name(), self.namespace_flag)
    }

    /// Waits for an answer of the API server, for a limited time. `doing` is the purpose: the error is `cannot
    /// <doing>`.
    pub(crate) async fn call_api<T>(
        &self,
        doing: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> anyhow::Result<T> {
        match timeout(API_TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.explain_error(doing, error)),
            Err(_) => Err(anyhow!(
                "cannot {doing}: no response from the cluster within {} s",
                API_TIMEOUT.as_secs()
            )),
        }
    }

    /// Error of the API server in terms of this installation, with a hint.
    pub(crate) fn explain_error(&self, doing: &str, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) => {
                anyhow!("cannot {doing}: {}", status_message(&status, &self.namespace))
            }
            error => {
                let hint = connection_hint(&error);
                anyhow::Error::new(error).context(format!("cannot {doing}: {hint}"))
            }
        }
    }
}

/// Likely reason for the missing answer, and a hint.
pub(crate) fn connection_hint(error: &kube::Error) -> &'static str {
    if tls_trust::is_certificate_error(error) {
        "the certificate of the cluster or the client is not trusted; check \
         `certificate-authority` and the user's credentials in the kubeconfig"
    } else {
        "cannot reach the cluster in the kubeconfig; check that it is running and that its address \
         is correct"
    }
}

/// Error in a few words.
pub(crate) fn short_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// True if the same request may well succeed a moment later.
pub(crate) fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500..),
        _ => true,
    }
}

/// True if the kind of an object exists, and the object does not.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if missing_resource(status) == Some(MissingResource::Object))
}

/// True if the cluster does not serve the requested kind.
pub(crate) fn is_unknown_kind(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if missing_resource(status) == Some(MissingResource::Definition))
}

/// True if an object was not created because its name is in use.
pub(crate) fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

#[derive(Debug, PartialEq, Eq)]
enum MissingResource {
    Object,
    Namespace,
    Definition,
}

/// Missing part of a request.
fn missing_resource(status: &kube::core::Status) -> Option<MissingResource> {
    if status.code != 404 {
        return None;
    }
    Some(match &status.details {
        Some(details) if details.kind == "namespaces" => MissingResource::Namespace,
        Some(details) if !details.name.is_empty() => MissingResource::Object,
        // The API server does not serve the path at all.
        _ => MissingResource::Definition,
    })
}

fn status_message(status: &kube::core::Status, namespace: &str) -> String {
    match missing_resource(status) {
        Some(MissingResource::Namespace) => format!(
            "namespace `{namespace}` does not exist; name the server's namespace with --namespace, \
             or create it with `kubectl create namespace {namespace}`"
        ),
        Some(MissingResource::Definition) => {
            "the cluster does not serve Velero's resources; install them with `bowline install \
             --crds-only`"
                .to_owned()
        }
        Some(MissingResource::Object) | None => status.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use kube::core::response::StatusDetails;

    use super::*;

    fn not_found(kind: &str, name: &str) -> Status {
        let details = StatusDetails {
            name: name.to_owned(),
            group: String::new(),
            kind: kind.to_owned(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        let message = format!("{kind} {name:?} not found");
        Status::failure(&message, "NotFound").with_code(404).with_details(details)
    }

    #[test]
    fn missing_object_namespace_and_definition_are_distinguished() {
        let backup = not_found("backups", "b");
        assert_eq!(missing_resource(&backup), Some(MissingResource::Object));
        assert_eq!(status_message(&backup, "velero"), "backups \"b\" not found");

        let namespace = not_found("namespaces", "velero");
        assert_eq!(missing_resource(&namespace), Some(MissingResource::Namespace));
        assert!(status_message(&namespace, "velero").contains("namespace `velero` does not exist"));

        let definition = Status::failure("404 page not found", "?").with_code(404);
        assert_eq!(missing_resource(&definition), Some(MissingResource::Definition));
        assert!(status_message(&definition, "velero").contains("`bowline install --crds-only`"));

        let forbidden = Status::failure("you may not", "Forbidden").with_code(403);
        assert_eq!(missing_resource(&forbidden), None);
        assert_eq!(status_message(&forbidden, "velero"), "you may not");
    }

    #[test]
    fn overload_is_transient_and_refusal_is_final() {
        let error = |code| kube::Error::Api(Status::failure("", "").with_code(code).boxed());
        for (code, expected) in [(429, true), (500, true), (503, true), (403, false), (404, false)]
        {
            assert_eq!(is_transient(&error(code)), expected, "{code}");
        }
    }
}

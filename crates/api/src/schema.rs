//! Schemas for fields whose Rust type says less, or more, than Velero's CRD does.
//!
//! The Kubernetes types among them have schemas in k8s-openapi, with long descriptions, without
//! the `x-kubernetes` merge hints, and in one place (the name of a Secret) stricter than what
//! Velero's CRDs demand.

use schemars::{Schema, SchemaGenerator, json_schema};

/// An integer without a format: what Go's `int` becomes in a CRD.
pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer" })
}

/// Base64-encoded bytes.
pub(crate) fn bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "byte" })
}

/// A list of objects of any shape.
pub(crate) fn raw_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// A label selector that may be null.
pub(crate) fn label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = required_label_selector(generator);
    schema.insert("nullable".into(), true.into());
    schema
}

/// A list of label selectors that may be null.
pub(crate) fn label_selectors(generator: &mut SchemaGenerator) -> Schema {
    let item = required_label_selector(generator);
    json_schema!({ "type": "array", "nullable": true, "items": item })
}

fn required_label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "matchLabels is a map of {key,value} pairs. All of them must match.",
                "type": "object",
                "additionalProperties": { "type": "string" },
            },
            "matchExpressions": {
                "description": "matchExpressions is a list of label selector requirements. All of them must match.",
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "description": "Label key that the selector applies to.", "type": "string" },
                        "operator": {
                            "description": "Operator: In, NotIn, Exists or DoesNotExist.",
                            "type": "string",
                        },
                        "values": {
                            "description": "Values for the operators In and NotIn.",
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" },
                        },
                    },
                },
            },
        },
    })
}

/// A key of a Secret in the object's namespace.
pub(crate) fn secret_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "required": ["key"],
        "properties": {
            "name": { "description": "Name of the Secret.", "type": "string", "default": "" },
            "key": { "description": "Key within the Secret.", "type": "string" },
            "optional": {
                "description": "Allow the Secret or key to be missing.",
                "type": "boolean",
            },
        },
    })
}

/// A typed reference to an object in the same namespace.
pub(crate) fn local_reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "required": ["kind", "name"],
        "properties": {
            "apiGroup": { "description": "API group. Empty: the core group.", "type": "string" },
            "kind": { "description": "Kind of the object.", "type": "string" },
            "name": { "description": "Name of the object.", "type": "string" },
        },
    })
}

/// The same, where null is allowed.
pub(crate) fn nullable_local_reference(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = local_reference(generator);
    schema.insert("nullable".into(), true.into());
    schema
}

/// A reference to any object.
pub(crate) fn object_reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "apiVersion": { "description": "API version of the object.", "type": "string" },
            "fieldPath": { "description": "Path of a field within the object.", "type": "string" },
            "kind": { "description": "Kind of the object.", "type": "string" },
            "name": { "description": "Name of the object.", "type": "string" },
            "namespace": { "description": "Namespace of the object.", "type": "string" },
            "resourceVersion": { "description": "Resource version of the object.", "type": "string" },
            "uid": { "description": "UID of the object.", "type": "string" },
        },
    })
}

/// Conditions, merged by type as Kubernetes' own are.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": { "description": "Type of condition.", "type": "string" },
                "status": {
                    "description": "Status: True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": { "description": "Reason in CamelCase.", "type": "string" },
                "message": { "description": "Human-readable message.", "type": "string" },
                "lastTransitionTime": {
                    "description": "Time of the last transition.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "Generation that the condition is based on.",
                    "type": "integer",
                    "format": "int64",
                },
            },
        },
    })
}

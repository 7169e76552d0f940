//! The response to a review, where no webhook server gives it.

use bytes::Bytes;
use serde_json::json;

use crate::status::Status;

/// The AdmissionReview that answers the one of this version and uid: it allows the request, or denies
/// it with a Status, whose message the API server shows to the user.
pub fn response(api_version: &str, uid: &str, denied: Option<&Status>) -> Bytes {
    let mut response = json!({"uid": uid, "allowed": denied.is_none()});
    if let Some(status) = denied {
        response["status"] = json!({
            "metadata": {},
            "status": "Failure",
            "message": status.message,
            "reason": status.reason,
            "code": status.code,
        });
    }
    let review =
        json!({"kind": "AdmissionReview", "apiVersion": api_version, "response": response});
    review.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Reason;

    #[test]
    fn a12_18_a_response_has_the_kind_version_and_uid_of_its_review() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let read = |bytes: Bytes| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
            let allowed = json!({
                "kind": "AdmissionReview", "apiVersion": version,
                "response": {"uid": "u\"1", "allowed": true},
            });
            assert_eq!(read(response(version, "u\"1", None)), allowed);
            let status = Status::new(Reason::Forbidden, "no one owns it");
            let denied = read(response(version, "u", Some(&status)));
            let response = &denied["response"];
            assert_eq!(response["allowed"], false);
            assert_eq!(response["status"]["code"], 403);
            assert_eq!(response["status"]["reason"], "Forbidden");
            assert_eq!(response["status"]["message"], "no one owns it");
        }
    }
}

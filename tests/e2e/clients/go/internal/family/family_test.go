package family

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheParentOfAChild(t *testing.T) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-owner", UID: "u"}}
	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Labels:          map[string]string{parentLabel: "by-label"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
	}}
	for style, parent := range map[string]string{ByOwner: "by-owner", ByLabel: "by-label", ByGenerated: "by-owner"} {
		if got := (&Operator{style: style}).parentOf(child); got != parent {
			t.Errorf("%s: %q", style, got)
		}
	}
	if got := (&Operator{style: ByOwner}).parentOf(&corev1.Secret{}); got != "" {
		t.Errorf("an orphan: %q", got)
	}
}

func TestAChildIsExpectedUntilItIsShown(t *testing.T) {
	o, of := Operator{expected: map[key]string{}}, key{"a", "b"}
	o.expected[of] = "u"
	o.shown(of, "another")
	if !o.isExpected(of) {
		t.Error("it was not shown")
	}
	o.shown(of, "u")
	if o.isExpected(of) {
		t.Error("it was shown")
	}
}

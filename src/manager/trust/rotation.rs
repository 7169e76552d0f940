//! A CA that is replaced while others trust it.
//!
//! The next one is published, that is, given to all who trust the present one; signs when they have
//! it; and the former one stays published until what it signed has ended. There is at most one of
//! each: while there is a former one, no next one is made.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use rustls_pki_types::CertificateDer;

use ctrlmesh_net::ca::Authority;

/// A CA with those before and after it.
#[derive(Debug)]
pub struct CaRotation {
    pub(super) signing: Authority,
    /// The longest life of what it signs.
    pub(super) longest: Duration,
    /// The one that is published and does not sign yet.
    pub(super) next: Option<Authority>,
    /// The one that does not sign any more.
    pub(super) former: Option<Former>,
}

/// A CA that does not sign any more.
#[derive(Debug)]
pub(super) struct Former {
    pub(super) cert: CertificateDer<'static>,
    /// The end of what it signed.
    pub(super) until: SystemTime,
}

/// A change of a [`CaRotation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The lifetime of signed certificates is longer.
    Lengthened,
    /// The next one is published.
    Published,
    /// The next one signs.
    Promoted,
    /// The former one is not published any more.
    Dropped,
}

impl CaRotation {
    /// A CA that signs what lives no longer than `longest`.
    pub(super) fn new(signing: Authority, longest: Duration) -> Self {
        Self { signing, longest, next: None, former: None }
    }

    /// Takes the next step. `is_due` returns whether a CA is to be replaced. `is_known` says whether all clients
    /// that trust the signing CA have the next one. Signed certificates are to live for `life`.
    pub(super) fn step(
        &mut self,
        is_due: impl Fn(&Authority) -> bool,
        make: impl FnOnce() -> Result<Authority, rcgen::Error>,
        is_known: bool,
        life: Duration,
        now: SystemTime,
    ) -> Result<Option<Move>, rcgen::Error> {
        if life > self.longest {
            self.longest = life;
            return Ok(Some(Move::Lengthened));
        }
        if let Some(former) = &self.former {
            if now <= former.until {
                return Ok(None);
            }
            self.former = None;
            return Ok(Some(Move::Dropped));
        }
        let Some(next) = self.next.take() else {
            if !is_due(&self.signing) {
                return Ok(None);
            }
            self.next = Some(make()?);
            return Ok(Some(Move::Published));
        };
        // No one accepts what an ended one signs: to wait any longer would help no one.
        let has_ended = now > self.signing.validity().to;
        if !is_known && !has_ended {
            self.next = Some(next);
            return Ok(None);
        }
        let former = mem::replace(&mut self.signing, next);
        let until = now + mem::replace(&mut self.longest, life);
        self.former = (!has_ended).then(|| Former { cert: former.cert().clone(), until });
        Ok(Some(Move::Promoted))
    }

    /// The one that signs.
    pub fn signing(&self) -> &Authority {
        &self.signing
    }

    /// The one that is published and does not sign yet.
    pub fn next(&self) -> Option<&Authority> {
        self.next.as_ref()
    }

    /// The certificates to trust, the signing one's first.
    pub fn published(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        let next = self.next.as_ref().map(Authority::cert);
        let former = self.former.as_ref().map(|former| &former.cert);
        [self.signing.cert()].into_iter().chain(next).chain(former)
    }
}

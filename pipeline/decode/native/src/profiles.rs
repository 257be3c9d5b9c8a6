//! ExportProfilesServiceRequest: its profiles are counted, not looked into.

use crate::refusal::{Refusal, Scan};
use crate::sizes::MAX_ITEMS;
use crate::wire::each_field;

/// How many profiles a request holds; `limited` = at most `MAX_ITEMS` of anything.
pub fn count(body: &[u8], limited: bool) -> Scan<usize> {
    let mut n = 0;
    let (mut groups, mut scopes) = (0, 0);
    each_field(body, 1, 0, |group| {
        groups += 1;
        each_field(group, 2, 1, |scope| {
            scopes += 1;
            each_field(scope, 2, 2, |_| {
                n += 1;
                Ok(())
            })
        })
    })?;
    if limited && groups.max(scopes).max(n) > MAX_ITEMS {
        return Err(Refusal::TooManyItems);
    }
    Ok(n)
}

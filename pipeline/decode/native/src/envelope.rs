//! The shell that every OTLP request shares: resources hold scopes, scopes hold items.

use crate::attributes::{self, Buffers};
use crate::columns::Columns;
use crate::counts::Counts;
use crate::dictionary::Numbering;
use crate::keys::KeyList;
use crate::lanes::{canonical, Keys, Lanes};
use crate::refusal::{Refusal, Scan};
use crate::sizes::{MAX_ATTRIBUTES, MAX_ITEMS};
use crate::strings::Strings;
use crate::values::pair;
use crate::wire::{each_field, length, Reader};

const RESOURCE: u32 = length(1);
const SCOPES: u32 = length(2);
const SCOPE: u32 = length(1);
const ITEMS: u32 = length(2);
const SCOPE_NAME: u32 = length(1);
const SCOPE_VERSION: u32 = length(2);
const SCOPE_ATTRIBUTES: u32 = length(3);

/// One scope of a request.
#[derive(Clone, Copy, Default)]
pub struct Scope<'a> {
    pub name: &'a [u8],
    pub version: &'a [u8],
    /// The string id of its name.
    pub name_id: i32,
    /// The row of its resource.
    pub resource: usize,
    /// The share of its attributes in a series key.
    pub lanes: Lanes,
    /// How many items of the batch it holds.
    pub items: usize,
}

/// Everything of a request but its items.
pub struct Envelope<'a, 'd> {
    pub strings: Strings<'a>,
    pub buffers: Buffers<'a>,
    pub counts: Counts,
    pub scopes: Vec<Scope<'a>>,
    /// The share of each resource's attributes in a series key.
    pub resource_lanes: Vec<Lanes>,
    /// Numbers of attribute keys, where a series key is made.
    pub keys: &'d mut Keys,
    pub encoding: Vec<u8>,
    resource_keys: &'d KeyList,
    resource_columns: &'d mut Columns,
    hashed: bool,
    resource_attributes: usize,
    scope_attributes: usize,
    item_attributes: usize,
    items: usize,
    limited: bool,
    pending: Vec<&'a [u8]>,
}

/// What a signal does with its items.
pub trait Items<'a> {
    /// One item.
    fn item(&mut self, envelope: &mut Envelope<'a, '_>, raw: &'a [u8]) -> Scan<()>;

    /// How many items were kept so far.
    fn kept(&self) -> usize;

    /// The scope whose items came last is known now.
    fn scope_done(&mut self, _envelope: &mut Envelope<'a, '_>, _scope: &Scope<'a>) {}
}

impl<'a, 'd> Envelope<'a, 'd> {
    /// `hashed` = series keys are made; `limited` = stop at `MAX_ITEMS`.
    pub fn new(
        strings: Strings<'a>,
        resource_keys: &'d KeyList,
        resource_columns: &'d mut Columns,
        keys: &'d mut Keys,
        hashed: bool,
        limited: bool,
    ) -> Self {
        resource_columns.start(resource_keys);
        Self {
            strings,
            buffers: Buffers::default(),
            counts: Counts::default(),
            scopes: Vec::new(),
            resource_lanes: Vec::new(),
            keys,
            encoding: Vec::new(),
            resource_keys,
            resource_columns,
            hashed,
            resource_attributes: 0,
            scope_attributes: 0,
            item_attributes: 0,
            items: 0,
            limited,
            pending: Vec::new(),
        }
    }

    /// Scans a whole request.
    pub fn request(&mut self, body: &'a [u8], items: &mut impl Items<'a>) -> Scan<()> {
        each_field(body, 1, 0, |group| self.group(group, items))
    }

    /// Refuses a request with too many of anything: `found` is how many there are now.
    #[inline(always)]
    pub fn limit(&self, found: usize) -> Scan<()> {
        if found > MAX_ITEMS && self.limited {
            return Err(Refusal::TooManyItems);
        }
        Ok(())
    }

    /// Takes note of one more attribute of an item; false once there are too many to be read.
    #[inline(always)]
    pub fn count_item_attribute(&mut self) -> bool {
        self.item_attributes += 1;
        self.item_attributes <= MAX_ATTRIBUTES
    }

    /// Refuses a request with too many attributes; asked last, since broken framing is told first.
    pub fn check_attributes(&self) -> Scan<()> {
        let most = self
            .resource_attributes
            .max(self.scope_attributes)
            .max(self.item_attributes);
        if most > MAX_ATTRIBUTES {
            return Err(Refusal::TooManyAttributes);
        }
        Ok(())
    }

    /// Columns of the resources, ids turned into codes.
    pub fn resources(&self, numbering: &mut Numbering) -> crate::columns::Attributes {
        let n = self.resource_lanes.len();
        self.resource_columns
            .finish(self.resource_keys, n, numbering)
    }

    fn group(&mut self, raw: &'a [u8], items: &mut impl Items<'a>) -> Scan<()> {
        let row = self.resource_lanes.len();
        self.limit(row + 1)?;
        let mut attributes = Vec::new();
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                RESOURCE => each_field(reader.bytes()?, 1, 2, |attribute| {
                    push(&mut attributes, attribute);
                    Ok(())
                })?,
                SCOPES => self.scope_items(reader.bytes()?, row, items)?,
                _ => reader.skip(tag, 1)?,
            }
        }
        self.resource_attributes += attributes.len();
        let lanes = self.resource(row, &attributes);
        self.resource_lanes.push(lanes);
        Ok(())
    }

    fn resource(&mut self, row: usize, attributes: &[&'a [u8]]) -> Lanes {
        self.keys.next_item();
        let mut sum = Lanes::default();
        for raw in attributes {
            let Ok((key, value)) = pair(raw, &mut self.buffers.runs) else {
                self.counts.bad_attribute += 1;
                continue;
            };
            if self.hashed {
                sum = sum.plus(self.share(key, value));
            }
            let found = attributes::meaning(
                self.resource_keys,
                key,
                value,
                &mut self.strings,
                &mut self.buffers,
            );
            attributes::keep(self.resource_columns, row, found, &mut self.counts);
        }
        sum
    }

    /// The attribute's share of its item's lanes: nothing if the item had the key before.
    fn share(&mut self, key: &[u8], value: crate::values::Value<'a>) -> Lanes {
        let id = self.keys.id(key);
        if !self.keys.is_first(id) {
            return Lanes::default();
        }
        canonical(&mut self.encoding, key, value, &self.buffers.runs);
        Lanes::of(&self.encoding)
    }

    fn scope_items(
        &mut self,
        raw: &'a [u8],
        resource: usize,
        items: &mut impl Items<'a>,
    ) -> Scan<()> {
        self.limit(self.scopes.len() + 1)?;
        let mut scope = Scope {
            resource,
            ..Scope::default()
        };
        let before = items.kept();
        let mut pending = std::mem::take(&mut self.pending);
        pending.clear();
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                ITEMS => {
                    self.items += 1;
                    self.limit(self.items)?;
                    items.item(self, reader.bytes()?)?;
                }
                SCOPE => self.scope(reader.bytes()?, &mut scope, &mut pending)?,
                _ => reader.skip(tag, 2)?,
            }
        }
        let name = self.strings.field(scope.name);
        self.counts.invalid_utf8 += u64::from(name.invalid);
        scope.name_id = name.id;
        scope.items = items.kept() - before;
        scope.lanes = self.scope_lanes(&pending);
        self.pending = pending;
        items.scope_done(self, &scope);
        self.scopes.push(scope);
        Ok(())
    }

    fn scope(
        &self,
        raw: &'a [u8],
        scope: &mut Scope<'a>,
        attributes: &mut Vec<&'a [u8]>,
    ) -> Scan<()> {
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                SCOPE_NAME => scope.name = reader.bytes()?,
                SCOPE_VERSION => scope.version = reader.bytes()?,
                SCOPE_ATTRIBUTES => push(attributes, reader.bytes()?),
                _ => reader.skip(tag, 3)?,
            }
        }
        Ok(())
    }

    fn scope_lanes(&mut self, attributes: &[&'a [u8]]) -> Lanes {
        if !self.hashed {
            return Lanes::default();
        }
        self.scope_attributes += attributes.len();
        self.keys.next_item();
        let mut sum = Lanes::default();
        for raw in attributes {
            if let Ok((key, value)) = pair(raw, &mut self.buffers.runs) {
                sum = sum.plus(self.share(key, value));
            }
        }
        sum
    }
}

/// Keeps an attribute to be read later, unless there are too many to be read at all.
#[inline(always)]
pub fn push<'a>(attributes: &mut Vec<&'a [u8]>, raw: &'a [u8]) {
    if attributes.len() <= MAX_ATTRIBUTES {
        attributes.push(raw);
    }
}

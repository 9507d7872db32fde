"""The scripts by which entries are listed, found, valued and taken out, each in one atomic step.

A slot is an entry's key in the store; its value is at `x .. slot`. Below `c`:
  e:<slot>        hash, the entry's card: whose it is, its tags, its hits; lives a minute longer than the value
  i:<id>          the slot of the exact entry with this id
  all             sorted set of slots by the end of their life (ms)
  value           sorted set of slots by what keeping them is worth: see `cache/worth.py`
  size, bytes     hash of the bytes that each slot takes in all, and their sum
  by:<dim>:<name> sorted set of slots by their end, for the dimensions tag, tenant and model (alias and real one)
  dims            sorted set of <dim>:<name> by the end of the longest-lived slot in it
  cuts, epoch     invalidations by number (microseconds of this server's clock, always growing), and the latest number
  floor           the latest number that is no longer in `cuts`
  turns           how often the cache was filled so far, the clock of `value`
  n               hash of counts since the beginning
What lists others has no time to live: a server short of memory drops values and cards, and never the lists by which
they are invalidated. A slot leaves the lists when its time is over: each write takes some out, and so does each sweep.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the digest by which the server knows it."""

    text: str
    digest: str


def _script(text: str) -> Script:
    whole = _COMMON + text
    return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


_COMMON = """
local c, x = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function text(value) return string.format('%.0f', value) end

local function dims_of(tenant, model, real, tags)
  local dims = {'tenant:' .. tenant, 'model:' .. model}
  if real ~= model then dims[#dims + 1] = 'model:' .. real end
  for tag in string.gmatch(tags, '[^,]+') do dims[#dims + 1] = 'tag:' .. tag end
  return dims
end

local function unlist(slot)
  local card = redis.call('HMGET', c .. 'e:' .. slot, 'id', 'tenant', 'model', 'real', 'tags', 'partition')
  if card[1] then
    redis.call('DEL', c .. 'e:' .. slot, c .. 'i:' .. card[1])
    for _, dim in ipairs(dims_of(card[2], card[3], card[4], card[5])) do redis.call('ZREM', c .. 'by:' .. dim, slot) end
  end
  redis.call('ZREM', c .. 'all', slot)
  redis.call('ZREM', c .. 'value', slot)
  local size = redis.call('HGET', c .. 'size', slot)
  if size then
    redis.call('HDEL', c .. 'size', slot)
    redis.call('DECRBY', c .. 'bytes', size)
  end
  return card[6], card[1]
end

local function forget(slot, rows)
  local count = redis.call('DEL', x .. slot)
  local partition, id = unlist(slot)
  if partition and partition ~= '' then
    rows[#rows + 1] = partition
    rows[#rows + 1] = id
  end
  return count
end

local function prune(limit)
  local over = redis.call('ZRANGEBYSCORE', c .. 'all', '-inf', text(now), 'LIMIT', 0, limit)
  for _, slot in ipairs(over) do unlist(slot) end
end

local function log2(value) return math.log(value) / math.log(2) end

local function plus(one, other)
  local most = math.max(one, other)
  return most + log2(2 ^ (one - most) + 2 ^ (other - most))
end

local function score(uses, worth, size, turns, power, half_life)
  return log2(uses) + power * log2(worth) - log2(size) + turns / half_life
end
"""

KEEP = _script("""
-- ARGV: c, x, slot, value, ttl_ms, epoch, worth_usd, max_entries, max_bytes (0: no bound), power, half_life,
-- card (see `cache/worth.py` for the two before it).
-- Returns {1, then partition and id of each semantic entry that made room}, or {0}: an invalidation wins.
local slot, value, ttl, epoch = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local card = cjson.decode(ARGV[12])

local function covers(cut)
  if cut.tenant and cut.tenant ~= card.tenant then return false end
  if cut.model and cut.model ~= card.model and cut.model ~= card.real then return false end
  if cut.call and cut.call ~= card.call then return false end
  if not cut.tag then return true end
  for _, tag in ipairs(card.tags) do if tag == cut.tag then return true end end
  return false
end

if (redis.call('GET', c .. 'epoch') or '0') ~= epoch then
  local is_cut = tonumber(epoch) < tonumber(redis.call('GET', c .. 'floor') or '0')
  for _, cut in ipairs(redis.call('ZRANGEBYSCORE', c .. 'cuts', '(' .. epoch, '+inf')) do
    is_cut = is_cut or covers(cjson.decode(cut))
  end
  if is_cut then
    redis.call('HINCRBY', c .. 'n', 'refused', 1)
    return {0}
  end
end

-- The value goes first: a server without room refuses it, and nothing is half done.
redis.call('SET', x .. slot, value, 'PX', text(ttl))
local before = redis.call('ZSCORE', c .. 'value', slot)
unlist(slot)
local tags, ends, size = table.concat(card.tags, ','), text(now + ttl), #value
local dims = dims_of(card.tenant, card.model, card.real, tags)
local room = size + 700 + 170 * #dims  -- with its card and its places in lists, as measured
redis.call('HSET', c .. 'e:' .. slot, 'id', card.id, 'kind', card.kind, 'call', card.call, 'tenant', card.tenant,
  'model', card.model, 'real', card.real, 'tags', tags, 'partition', card.partition, 'twin', card.twin,
  'saves', tostring(card.saves), 'worth', ARGV[7], 'size', size, 'room', room, 'at', text(now), 'ends', ends, 'hits', 0)
redis.call('PEXPIRE', c .. 'e:' .. slot, text(ttl + 60000))
if card.partition == '' then redis.call('SET', c .. 'i:' .. card.id, slot, 'PX', text(ttl)) end
if card.twin ~= '' and redis.call('HGET', c .. 'e:' .. card.twin, 'call') == card.call then
  redis.call('HSET', c .. 'e:' .. card.twin, 'twin', slot)
end
redis.call('ZADD', c .. 'all', ends, slot)
for _, dim in ipairs(dims) do
  redis.call('ZREMRANGEBYSCORE', c .. 'by:' .. dim, '-inf', text(now))
  redis.call('ZADD', c .. 'by:' .. dim, ends, slot)
  redis.call('ZADD', c .. 'dims', 'GT', ends, dim)
end
local power, half_life = tonumber(ARGV[10]), tonumber(ARGV[11])
if redis.call('EXISTS', c .. 'turns') == 0 then  -- a server that drops what it likes has dropped the clock
  local best = redis.call('ZREVRANGE', c .. 'value', 0, 0, 'WITHSCORES')
  if best[2] then
    local lost = half_life * (tonumber(best[2]) - score(1, tonumber(ARGV[7]), room, 0, power, half_life))
    redis.call('SET', c .. 'turns', text(math.max(0, lost)))
  end
end
local turns = redis.call('INCRBYFLOAT', c .. 'turns', 1 / redis.call('ZCARD', c .. 'all'))
local worth = score(1, tonumber(ARGV[7]), room, tonumber(turns), power, half_life)
if before then worth = plus(worth, tonumber(before)) end
redis.call('ZADD', c .. 'value', string.format('%.17g', worth), slot)
redis.call('HSET', c .. 'size', slot, room)
redis.call('INCRBY', c .. 'bytes', room)
redis.call('HINCRBY', c .. 'n', 'kept', 1)
prune(10)

local answer, max_entries, max_bytes = {1}, tonumber(ARGV[8]), tonumber(ARGV[9])
local function is_over()
  local is_many = max_entries > 0 and redis.call('ZCARD', c .. 'all') > max_entries
  return is_many or (max_bytes > 0 and tonumber(redis.call('GET', c .. 'bytes') or '0') > max_bytes)
end
for _ = 1, 100 do
  if not is_over() then break end
  local least = redis.call('ZPOPMIN', c .. 'value')
  if not least[1] then break end
  forget(least[1], answer)
  redis.call('HINCRBY', c .. 'n', 'evicted', 1)
end
return answer
""")

FORGET = _script("""
-- ARGV: c, x, the name of a count, slots. Returns {how many values there were, then partition and id of each row}.
local answer, count = {0}, 0
redis.call('DEL', c .. 'none')  -- a script that has written is not stopped by a full memory
for place = 4, #ARGV do count = count + forget(ARGV[place], answer) end
if count > 0 then redis.call('HINCRBY', c .. 'n', ARGV[3], count) end
answer[1] = count
return answer
""")

_MATCHING = """
local function matching(wanted, most)
  local sets = {}
  if wanted.tag then sets[#sets + 1] = c .. 'by:tag:' .. wanted.tag end
  if wanted.tenant then sets[#sets + 1] = c .. 'by:tenant:' .. wanted.tenant end
  if wanted.model then sets[#sets + 1] = c .. 'by:model:' .. wanted.model end
  if #sets == 0 then sets[1] = c .. 'all' end
  table.sort(sets, function(one, other) return redis.call('ZCARD', one) < redis.call('ZCARD', other) end)
  local found, read = {}, #sets > 1 and -1 or most
  for _, slot in ipairs(redis.call('ZREVRANGEBYSCORE', sets[1], '+inf', '(' .. text(now), 'LIMIT', 0, read)) do
    local is_in = #found < most or most < 0
    for place = 2, #sets do is_in = is_in and redis.call('ZSCORE', sets[place], slot) end
    if is_in then found[#found + 1] = slot end
  end
  return found
end
"""

MATCHING = _script(
    _MATCHING
    + """
-- ARGV: c, x, what is wanted (tag, tenant, model), how many at most. Returns the slots, the longest-lived first.
return matching(cjson.decode(ARGV[3]), tonumber(ARGV[4]))
"""
)

CUT = _script(
    _MATCHING
    + """
-- ARGV: c, x, what is cut (tag, tenant, model, call; and by whom), how many numbers are kept. From now on no answer
-- that was on its way is kept where the cut covers it. Returns {number, then the slots that are to be forgotten}.
redis.call('DEL', c .. 'none')  -- a script that has written is not stopped by a full memory
local number = tonumber(time[1]) * 1000000 + tonumber(time[2])
number = math.max(number, tonumber(redis.call('GET', c .. 'epoch') or '0') + 1)
local cut = cjson.decode(ARGV[3])
cut.number = text(number)  -- as a number it would lose its last digits
redis.call('ZADD', c .. 'cuts', text(number), cjson.encode(cut))
redis.call('SET', c .. 'epoch', text(number))
local floor, surplus = number - 2 * 86400 * 1000000, redis.call('ZCARD', c .. 'cuts') - tonumber(ARGV[4])
if surplus > 0 then
  floor = math.max(floor, tonumber(redis.call('ZRANGE', c .. 'cuts', surplus - 1, surplus - 1, 'WITHSCORES')[2]))
end
local num_out = redis.call('ZREMRANGEBYSCORE', c .. 'cuts', '-inf', text(floor))
if num_out > 0 then redis.call('SET', c .. 'floor', text(floor)) end
local answer = {text(number)}
if not cut.call then
  for _, slot in ipairs(matching(cut, -1)) do answer[#answer + 1] = slot end
end
return answer
"""
)

HITS = _script("""
-- ARGV: c, x, power, half_life, then slot and number of hits. Counts them and raises what keeping the entry is worth.
local turns = tonumber(redis.call('GET', c .. 'turns') or '0')
local power, half_life = tonumber(ARGV[3]), tonumber(ARGV[4])
for place = 5, #ARGV, 2 do
  local slot, hits = ARGV[place], tonumber(ARGV[place + 1])
  local card = redis.call('HMGET', c .. 'e:' .. slot, 'worth', 'room', 'kind', 'saves')
  local before = redis.call('ZSCORE', c .. 'value', slot)
  if card[1] then
    redis.call('HINCRBY', c .. 'e:' .. slot, 'hits', hits)
    redis.call('HINCRBY', c .. 'n', 'hits_' .. card[3], hits)
    redis.call('HINCRBYFLOAT', c .. 'n', 'saved_usd', tostring(tonumber(card[4]) * hits))
    if before then
      local gained = score(hits, tonumber(card[1]), tonumber(card[2]), turns, power, half_life)
      redis.call('ZADD', c .. 'value', string.format('%.17g', plus(gained, tonumber(before))), slot)
    end
  end
end
return redis.call('GET', c .. 'epoch') or '0'
""")

SWEEP = _script("""
-- ARGV: c, x. Takes out slots whose time is over, and some whose value the server has dropped; returns their rows.
local rows = {}
redis.call('DEL', c .. 'none')
prune(500)
for _, dim in ipairs(redis.call('ZRANGEBYSCORE', c .. 'dims', '-inf', text(now), 'LIMIT', 0, 100)) do
  redis.call('DEL', c .. 'by:' .. dim)
  redis.call('ZREM', c .. 'dims', dim)
end
for _, slot in ipairs(redis.call('ZRANDMEMBER', c .. 'all', 20)) do
  if redis.call('EXISTS', x .. slot) == 0 then forget(slot, rows) end
end
return rows
""")

SUMS = _script("""
-- ARGV: c, x, slots. Returns, for each (by, name) that occurs: by, name, entries, bytes, hits, dollars saved.
local sums, order = {}, {}
local function add(by, name, size, hits, saved)
  local key = by .. ' ' .. name
  local sum = sums[key]
  if not sum then
    sum = {by, name, 0, 0, 0, 0}
    sums[key] = sum
    order[#order + 1] = sum
  end
  sum[3], sum[4], sum[5], sum[6] = sum[3] + 1, sum[4] + size, sum[5] + hits, sum[6] + saved
end
for place = 3, #ARGV do
  local card = redis.call('HMGET', c .. 'e:' .. ARGV[place], 'kind', 'model', 'tenant', 'size', 'hits', 'saves')
  if card[1] then
    local size, hits = tonumber(card[4]), tonumber(card[5])
    local saved = hits * tonumber(card[6])
    add('all', '', size, hits, saved)
    add('kind', card[1], size, hits, saved)
    add('model', card[2], size, hits, saved)
    add('tenant', card[3], size, hits, saved)
  end
end
for _, sum in ipairs(order) do
  for place = 3, 5 do sum[place] = text(sum[place]) end
  sum[6] = string.format('%.17g', sum[6])
end
return order
""")

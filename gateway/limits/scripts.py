"""The scripts that decide inside the store, each in one atomic step.

A scope is one hash, `base`, and two sorted sets. In the hash:
  r, ro, rl, r:<s>   requests of the last 60 s: their sum, the oldest and the last second, the count of each second
  t, to, tl, t:<s>   tokens, in the same way
  wl, wi             the budget window: its length in seconds and its number
  spent, held        settled and reserved billionths of a dollar in that window
  c:<id>             a call in flight: second|tokens|nano_usd|wl|wi
  ix                 until when the index `scopes` says that the scope is in use
In `base:s` each call in flight has its lease's end (ms) as score; in `base:x` are calls whose lease ran out.
Nothing has a time to live, since what has one is dropped with the cache when memory is short: each admission
deletes up to two scopes that are out of use instead.
"""

from __future__ import annotations

_COMMON = """
local function number(value) return tonumber(value or '0') or 0 end
local function text(value) return string.format('%.0f', value) end
local function parse(call) return string.match(call, '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$') end

local function reclaim(base, now)
  local lost = redis.call('ZRANGEBYSCORE', base .. ':s', '-inf', text(now), 'LIMIT', 0, 100)
  for _, id in ipairs(lost) do
    local call = redis.call('HGET', base, 'c:' .. id)
    if call then
      local _, _, nano, wl, wi = parse(call)
      local window = redis.call('HMGET', base, 'wl', 'wi')
      if window[1] == wl and window[2] == wi then redis.call('HINCRBY', base, 'held', text(0 - nano)) end
      redis.call('HDEL', base, 'c:' .. id)
    end
    redis.call('ZREM', base .. ':s', id)
    redis.call('ZREMRANGEBYSCORE', base .. ':x', '-inf', text(now - 3600000))
    redis.call('ZADD', base .. ':x', text(now), id)
  end
end
"""

ADMIT = (
    _COMMON
    + """
-- KEYS: the index, then each scope. ARGV: id, lease_ms, tokens, nano_usd, is_leased, then by scope rpm, tpm, parallel,
-- budget (-1: no limit), wl, wi. Returns {verdict, scope, wait_ms (of a budget: the nano_usd that are left), then by
-- scope: call in flight, requests left, tokens left, reset_requests_ms, reset_tokens_ms}. Verdicts: ok, rpm, tpm,
-- parallel, budget, seed.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local clock = tonumber(time[1])
local id, tokens_asked, nano = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local lease_end, is_leased = now + tonumber(ARGV[2]), ARGV[5] == '1'

local function roll(base, kind, sum, oldest, last)
  local first = clock - 60
  if sum == 0 and oldest == 0 then return 0, 0 end
  if oldest >= first then return sum, oldest end
  local names = {}
  for second = oldest, math.min(first - 1, last) do names[#names + 1] = kind .. ':' .. text(second) end
  if #names > 0 then
    for _, count in ipairs(redis.call('HMGET', base, unpack(names))) do sum = sum - number(count) end
    redis.call('HDEL', base, unpack(names))
  end
  if last < first then return 0, 0 end
  return sum, first
end

-- How long until `needed` fall out of the last 60 s.
local function wait(base, kind, oldest, last, needed)
  for second = oldest, last do
    needed = needed - number(redis.call('HGET', base, kind .. ':' .. text(second)))
    if needed <= 0 then return (second + 61) * 1000 - now end
  end
  return (last + 61) * 1000 - now
end

local scopes, verdict, blamed, longest = {}, 'ok', 0, 0
local function refuse(kind, scope, wait_ms)
  if kind == 'budget' or (verdict ~= 'budget' and (verdict == 'ok' or wait_ms > longest)) then
    verdict, blamed, longest = kind, scope, wait_ms
  end
end

for index = 2, #KEYS do
  local base, at = KEYS[index], 5 + (index - 2) * 6
  local rpm, tpm, parallel = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local budget, wl, wi = tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 6]
  if is_leased then reclaim(base, now) end
  local kept = redis.call('HMGET', base, 'r', 'ro', 'rl', 't', 'to', 'tl', 'wl', 'wi', 'spent', 'held', 'ix',
    'c:' .. id)
  local scope = {base = base, kept = kept, rl = number(kept[3]), tl = number(kept[6]), ix = number(kept[11])}
  clock = math.max(clock, scope.rl, scope.tl)
  if budget >= 0 then
    if kept[7] ~= wl or number(kept[8]) < number(wi) then return {'seed', index - 1, 0} end
    wi = kept[8]
  end
  scope.known = kept[12]  -- the first try let the call in, and its answer got lost
  scope.wl, scope.wi, scope.budget, scope.parallel = wl, wi, budget, parallel
  scope.rpm, scope.tpm, scope.tokens = rpm >= 0 and rpm, tpm >= 0 and tpm, 0
  scopes[#scopes + 1] = scope
end

for index, scope in ipairs(scopes) do
  local base, kept = scope.base, scope.kept
  local function blame(kind, wait_ms) if not scope.known then refuse(kind, index, wait_ms) end end
  if scope.budget >= 0 then
    local left = scope.budget - number(kept[9]) - number(kept[10])
    if nano > left then blame('budget', math.max(0, left)) end
  end
  if scope.rpm then
    scope.r, scope.ro = roll(base, 'r', number(kept[1]), number(kept[2]), scope.rl)
    local over = scope.r + 1 - scope.rpm
    if over > 0 then blame('rpm', wait(base, 'r', scope.ro, scope.rl, over)) end
  end
  if scope.tpm then
    scope.t, scope.to = roll(base, 't', number(kept[4]), number(kept[5]), scope.tl)
    scope.tokens = math.min(tokens_asked, scope.tpm)
    local over = scope.t + scope.tokens - scope.tpm
    if over > 0 then blame('tpm', wait(base, 't', scope.to, scope.tl, over)) end
  end
  local parallel = scope.parallel
  if parallel >= 0 and redis.call('ZCARD', base .. ':s') >= parallel then blame('parallel', 0) end
end

local answer = {verdict, blamed, longest}
for _, scope in ipairs(scopes) do
  local changes, call = {}, scope.known or ''
  local function set(name, value) changes[#changes + 1] = name; changes[#changes + 1] = value end
  local is_ok = verdict == 'ok' and not scope.known
  if scope.rpm then
    if is_ok then
      scope.r, scope.rl = scope.r + 1, clock
      if scope.ro == 0 then scope.ro = clock end
      redis.call('HINCRBY', scope.base, 'r:' .. text(clock), 1)
    end
    set('r', text(scope.r)); set('ro', text(scope.ro)); set('rl', text(scope.rl))
  end
  if scope.tpm then
    if is_ok then
      scope.t, scope.tl = scope.t + scope.tokens, clock
      if scope.to == 0 then scope.to = clock end
      redis.call('HINCRBY', scope.base, 't:' .. text(clock), text(scope.tokens))
    end
    set('t', text(scope.t)); set('to', text(scope.to)); set('tl', text(scope.tl))
  end
  if is_ok and is_leased then
    call = text(clock) .. '|' .. text(scope.tokens) .. '|' .. text(nano) .. '|'
      .. scope.wl .. '|' .. scope.wi
    set('c:' .. id, call)
    redis.call('ZADD', scope.base .. ':s', text(lease_end), id)
    if scope.budget >= 0 then redis.call('HINCRBY', scope.base, 'held', ARGV[4]) end
  end
  local window_end = scope.budget >= 0 and (number(scope.wi) + 1) * number(scope.wl) * 1000 or 0
  local until_ms = math.max(lease_end, now + 61000, window_end)
  if is_ok and until_ms > scope.ix then
    set('ix', text(until_ms + 60000))
    redis.call('ZADD', KEYS[1], text(until_ms + 60000), scope.base)
  end
  if #changes > 0 then redis.call('HSET', scope.base, unpack(changes)) end
  local function left(most, used) if most then return text(math.max(0, most - used)) end return '' end
  local function reset(used, last)
    if used > 0 then return text(math.max(0, (last + 61) * 1000 - now)) end
    return '0'
  end
  answer[#answer + 1] = {call, left(scope.rpm, scope.r or 0), left(scope.tpm, scope.t or 0),
    reset(scope.r or 0, scope.rl), reset(scope.t or 0, scope.tl)}
end

for _, base in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, 2)) do
  reclaim(base, now)
  if redis.call('ZCARD', base .. ':s') > 0 then redis.call('ZADD', KEYS[1], text(now + 60000), base)
  else
    redis.call('DEL', base, base .. ':s', base .. ':x')
    redis.call('ZREM', KEYS[1], base)
  end
end
return answer
"""
)

SETTLE = (
    _COMMON
    + """
-- KEYS: each scope. ARGV: id, tokens, nano_usd. What is no longer in flight was settled before, or its lease ran
-- out: then its cost still counts, once. Returns in how many scopes something was settled.
local num_settled = 0
for _, base in ipairs(KEYS) do
  local field = 'c:' .. ARGV[1]
  local call = redis.call('HGET', base, field)
  if call then
    num_settled = num_settled + 1
    local second, tokens, nano, wl, wi = parse(call)
    redis.call('HDEL', base, field)
    redis.call('ZREM', base .. ':s', ARGV[1])
    local window = redis.call('HMGET', base, 'wl', 'wi', 't:' .. second)
    if window[1] == wl and window[2] == wi then
      redis.call('HINCRBY', base, 'held', text(0 - nano))
      redis.call('HINCRBY', base, 'spent', ARGV[3])
    end
    local change = tonumber(ARGV[2]) - tonumber(tokens)
    if window[3] and change ~= 0 then
      redis.call('HINCRBY', base, 't:' .. second, change)
      redis.call('HINCRBY', base, 't', change)
    end
  elseif redis.call('ZREM', base .. ':x', ARGV[1]) == 1 then
    num_settled = num_settled + 1
    if redis.call('HEXISTS', base, 'wl') == 1 then redis.call('HINCRBY', base, 'spent', ARGV[3]) end
  end
end
return num_settled
"""
)

RENEW = """
-- KEYS: each call's scope. ARGV: lease_ms, then by key: id, call in flight. A call that is not there any more (the
-- store lost its data, or the lease ran out) is written anew: it does hold its slot.
local time = redis.call('TIME')
local lease_end = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1])
for index, base in ipairs(KEYS) do
  local id, call = ARGV[index * 2], ARGV[index * 2 + 1]
  redis.call('ZADD', base .. ':s', string.format('%.0f', lease_end), id)
  if redis.call('HSETNX', base, 'c:' .. id, call) == 1 then
    redis.call('ZREM', base .. ':x', id)
    local nano, wl, wi = string.match(call, '^%d+|%d+|(%d+)|(%d+)|(%d+)$')
    local window = redis.call('HMGET', base, 'wl', 'wi')
    if window[1] == wl and window[2] == wi then redis.call('HINCRBY', base, 'held', nano) end
  end
end
return #KEYS
"""

ABANDON = (
    _COMMON
    + """
-- KEYS: each scope. ARGV: id. Take a call back as if it had never been let in, its request aside.
for _, base in ipairs(KEYS) do
  local call = redis.call('HGET', base, 'c:' .. ARGV[1])
  if call then
    local _, _, nano, wl, wi = parse(call)
    redis.call('HDEL', base, 'c:' .. ARGV[1])
    local window = redis.call('HMGET', base, 'wl', 'wi')
    if window[1] == wl and window[2] == wi then redis.call('HINCRBY', base, 'held', text(0 - nano)) end
  end
  redis.call('ZREM', base .. ':s', ARGV[1])
  redis.call('ZREM', base .. ':x', ARGV[1])
end
return 1
"""
)

SEED = (
    _COMMON
    + """
-- KEYS: the scope. ARGV: wl, wi, spent. Begin a budget window with what the log knows to be spent; the first one wins.
local base = KEYS[1]
local window = redis.call('HMGET', base, 'wl', 'wi')
if window[1] == ARGV[1] and number(window[2]) >= number(ARGV[2]) then return 0 end
local held, fields = 0, redis.call('HGETALL', base)
for index = 1, #fields, 2 do
  if string.sub(fields[index], 1, 2) == 'c:' then
    local _, _, nano, wl, wi = parse(fields[index + 1])
    if wl == ARGV[1] and wi == ARGV[2] then held = held + number(nano) end
  end
end
redis.call('HSET', base, 'wl', ARGV[1], 'wi', ARGV[2], 'spent', ARGV[3], 'held', text(held))
return 1
"""
)

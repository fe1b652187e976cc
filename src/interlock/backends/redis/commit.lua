-- Judge the commits of one call, then apply those that are good. Each is judged as if those before it had been applied
-- by calls of their own; everything is judged before anything is written.
--
-- KEYS 1 entries 2 index 3 history 4 feed 5 expiring 6 settled 7 large (see the package's docstring)
-- ARGV 1 heads, for each commit 39 bytes: identity (16), mode (w write, q quiet, v validate only), snapshot (8), rows and
--        operations (4 each), spans, clears and fetches (2 each; one that has any of these comes alone)
--      2 's' 3 'm', for each commit ('x' + transaction, rows x key): the fields to read, all in a row
--      for each commit (plan, record, operations x argument), spans x (start, stop), clears x (start, stop), fetches x key
-- plan: for each row expectation (1), operation (1), version (16)
-- expectation: - none | v version | ! version, not expired either | a absent, recorded | g absent
--              | u unchanged since the snapshot | U the same and not expired
-- operation:   - none | p put | o put unlisted | t put with a life | d delete | m merge | M merge computed outside
-- answer: {at, for each commit: position of a plain one that is done
--         | {1, position, at, merged, fetched} | {2, position, clashes} | {3, meta} another store or incarnation
--         | {4} too old | {5, record} known already | {6} too many keys to clear | {7, rows to compute outside}}
local call, sub, byte, pack, from, A, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, ARGV, KEYS[1]
local heads, fields, r = A[1], 2
for c = 26, #heads, 39 do fields = fields + 1 + from('>I4', heads, c) end
if fields <= 2000 then
  r = call('HMGET', D, unpack(A, 2, fields + 1))
else
  r = {}
  for a = 2, fields + 1, 2000 do
    local part = call('HMGET', D, unpack(A, a, math.min(a + 1999, fields + 1)))
    for j = 1, #part do r[a + j - 2] = part[j] end
  end
end
local answers, meta = {0}, r[2]
if not meta then
  for c = 1, #heads, 39 do answers[#answers + 1] = {3, ''} end
  return answers
end
local position, last = from('>I8I8', r[1])
local store, horizon, barred = from('>c16I8I6', meta)
local time = call('TIME')
local at = time[1] * 1000000 + time[2]
if at < last then at = last end
answers[1] = at

-- What the commits that were found good make, by where it goes. `fresh` has the newest entries of these by key, `kept`
-- their large values, `ends` when keys expire, false for those that do not any more.
local before_all, nonce = position, sub(r[1], 17, 24)
local set, feeds, fresh, kept = {'s', ''}, {}, {}, {}
local old, listed, large, ends, fetching

local NONE, VERSION, ALIVE, GUARD, RECORDED, UNCHANGED_ALIVE, MERGE, COMPUTED, DELETE, PUT_FOR = byte('-v!gaUmMdt', 1, -1)

-- The commit whose fields begin at argument `f` and whose plan is argument `g`; the rest is what its head says.
local function one(f, g, identity, mode, snapshot, rows, operations, spans, clears, fetches)
  if identity ~= store or snapshot > position then return {3, meta} end
  if position > before_all then -- what the commits before it make stands in the place of what was read
    for a = f, f + rows do
      local e = fresh[A[a]]
      if e then r[a - 1] = e end
    end
  end
  if mode ~= 'v' then
    if r[f - 1] then return {5, r[f - 1]} end
    if barred > 0 then -- the youngest transaction whose fence was dropped: whoever is not younger may have been fenced
      local a1, a2, a3 = from('>I6I6I4', A[f], 2)
      local b1, b2, b3 = from('>I6I6I4', meta, 25)
      if a1 < b1 or (a1 == b1 and (a2 < b2 or (a2 == b2 and a3 <= b3))) then return {4} end
    end
  end
  if snapshot < horizon then return {4} end
  local plan, record, base = A[g], A[g + 1], g + operations + 1
  local clashes, graves, merging
  for i = 1, rows do
    local p = 18 * i - 17
    local x, operation = byte(plan, p, p + 1)
    if x ~= NONE then
      local e, bad = r[f + i - 1], false
      if x == VERSION or x == ALIVE then
        bad = not e or sub(e, 1, 16) ~= sub(plan, p + 2, p + 17) or byte(e, 17) % 2 == 1
          or (x == ALIVE and byte(e, 17) % 8 >= 4 and from('>I8', e, 18) <= at)
      elseif e then
        if x == GUARD or x == RECORDED then
          bad = byte(e, 17) % 2 == 0
          if x == RECORDED and not bad then
            graves = graves or {}
            graves[#graves + 1] = 'a'
            graves[#graves + 1] = sub(e, 1, 16) .. A[f + i]
          end
        else
          bad = from('>I8', e) > snapshot or (x == UNCHANGED_ALIVE and byte(e, 17) % 8 >= 4 and from('>I8', e, 18) <= at)
        end
      end
      if bad then
        clashes = clashes or {}
        clashes[#clashes + 1] = {i, A[f + i], e or ''}
      end
    end
    if operation == MERGE or operation == COMPUTED then merging = true end
  end
  local cleared, removed
  --@ ranges.lua
  if clashes then
    local shown = {}
    for j = 1, #clashes do
      local c = clashes[j]
      local e, born, author = c[3], '', ''
      if e ~= '' and j <= 100 then
        local id = string.format('%.0f', (from('>I8', e)))
        local feed = feeds[from('>I8', e) - before_all] or (call('XRANGE', KEYS[4], id, id .. '-0')[1] or {})[2]
        if feed then born, author = feed[2], feed[4] end
      end
      shown[j] = {c[1], c[2], #e <= 1049 and e or sub(e, 1, 25), born, author, #e > 1049 and 1 or 0}
    end
    return {2, position, shown}
  end
  local after, merged
  --@ merges.lua
  if mode == 'v' then
    local fetched, base = nil, base + 2 * (spans + clears)
    --@ fetch.lua
    return {1, position, at, 0, fetched or 0, nonce}
  end

  position = position + 1
  local own = pack('>I8', position)
  nonce = sub(A[f], 10, 17)
  local head, quiet = own .. nonce, mode == 'q'
  local feed, place = {'t', at, 'm', record}, g + 1
  set[#set + 1] = A[f]
  set[#set + 1] = 'C' .. own
  fresh[A[f]] = set[#set]
  feeds[#feeds + 1] = feed
  for i = 1, rows do
    local operation = byte(plan, 18 * i - 16)
    if operation ~= NONE then
      place = place + 1
      local k, e, b = A[f + i], r[f + i - 1], A[place]
      local was = e and byte(e, 17) or 32
      local flags, expiry, outside = quiet and 8 or 0, '', was % 64 >= 32
      local mark = string.char(operation)
      if operation == DELETE then
        if not e or was % 2 == 1 or (cleared and cleared[k]) then b = nil end
        flags = flags + 1
      elseif operation == MERGE or operation == COMPUTED then
        b, mark = after[i], 'm'
        if e and was % 2 == 0 and was % 8 >= 4 and not (cleared and cleared[k]) then
          flags, expiry = flags + 4, sub(e, 18, 25)
        end
        outside = e and outside
      else
        if operation == PUT_FOR then
          local until_ = at + from('>I8', b, 2)
          flags, expiry = flags + 4, pack('>I8', until_)
          ends = ends or {}
          ends[k] = until_
          mark = sub(b, 1, 1)
          b = sub(b, 10)
        end
        if mark == 'p' then outside = false end
      end
      if b then
        if outside then flags = flags + 32 elseif not e or was % 64 >= 32 then
          listed = listed or {}
          listed[#listed + 1] = 0
          listed[#listed + 1] = k
        end
        if #b > 4096 and not quiet then
          large = large or {}
          large[#large + 1] = pack('>I4', #k) .. k .. own
          large[#large + 1] = b
          kept[large[#large - 1]] = b
          flags, b = flags + 2, ''
        end
        if e then
          if quiet and was % 16 >= 8 then
            flags = flags + 16
          elseif not (cleared and cleared[k]) then
            old = old or {}
            old[#old + 1] = 0
            old[#old + 1] = pack('>I4', #k) .. k .. e
          end
          if was % 8 >= 4 and flags % 8 < 4 then
            ends = ends or {}
            ends[k] = false
          end
        end
        if flags == 0 then b = head .. '\0' .. b else b = head .. string.char(flags) .. expiry .. b end
        set[#set + 1] = k
        set[#set + 1] = b
        fresh[k] = b
        feed[#feed + 1] = mark
        feed[#feed + 1] = k
        if cleared and cleared[k] then cleared[k] = 'written' end
      end
    end
  end
  if removed then
    local grave = head .. string.char(quiet and 9 or 1)
    for j = 1, #removed, 2 do
      local k, e = removed[j], removed[j + 1]
      if cleared[k] ~= 'written' then
        set[#set + 1] = k
        set[#set + 1] = grave
        if byte(e, 17) % 8 >= 4 then
          ends = ends or {}
          ends[k] = false
        end
      end
      old = old or {}
      old[#old + 1] = 0
      old[#old + 1] = pack('>I4', #k) .. k .. e
      feed[#feed + 1] = 'c'
      feed[#feed + 1] = k
    end
  end
  if graves then for j = 1, #graves do feed[#feed + 1] = graves[j] end end
  if not merged and fetches == 0 then return position end
  local answer = {1, position, at, merged or 0, 0}
  if fetches > 0 then fetching = {answer, fetches, base + 2 * (spans + clears)} end
  return answer
end
local f, g = 4, fields + 2
for h = 1, #heads, 39 do
  local identity, mode, snapshot, rows, operations, spans, clears, fetches = from('>c16c1I8I4I4I2I2I2', heads, h)
  answers[#answers + 1] = one(f, g, identity, mode, snapshot, rows, operations, spans, clears, fetches)
  f, g = f + rows + 1, g + operations + 2
end
if position == before_all then return answers end

-- From here on things are written. The first is HSET, which the server refuses if memory is short, if it is a replica, or
-- if it has too few of them; so nothing strikes between two writes.
set[2] = pack('>I8I8', position, at) .. nonce
local function write(command, key, what)
  if what then
    if #what <= 4000 then
      call(command, key, unpack(what))
    else
      for a = 1, #what, 4000 do call(command, key, unpack(what, a, math.min(a + 3999, #what))) end
    end
  end
end
write('HSET', D, set)
write('ZADD', KEYS[3], old)
write('ZADD', KEYS[2], listed)
write('HSET', KEYS[7], large)
if ends then
  local lives, undying
  for k, until_ in pairs(ends) do
    if until_ then
      lives = lives or {}
      lives[#lives + 1] = until_
      lives[#lives + 1] = k
    else
      undying = undying or {}
      undying[#undying + 1] = k
    end
  end
  write('ZADD', KEYS[5], lives)
  write('ZREM', KEYS[5], undying)
end
for c = 1, #feeds do
  local feed, own = feeds[c], before_all + c
  if #feed <= 4000 then
    call('XADD', KEYS[4], own, unpack(feed))
  else -- more than one stream entry can take: parts of one position, which readers join
    for a = 5, #feed, 3900 do
      call('XADD', KEYS[4], string.format('%.0f-%d', own, (a - 5) / 3900), 't', at, 'm', a == 5 and feed[4] or '',
        unpack(feed, a, math.min(a + 3899, #feed)))
    end
  end
end
if fetching then
  local fetches, base, fetched = fetching[2], fetching[3]
  --@ fetch.lua
  fetching[1][5] = fetched
end
return answers

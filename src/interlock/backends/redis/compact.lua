-- Drop the oldest of the feed, and the versions and records that only it needed.
-- ARGV 1 drop what is older than this time (microseconds) 2 the most stream entries
-- answer: {0, things dropped, 1 if there may be more} | {3, ''}
local call, sub, byte, pack, from, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, KEYS[1]
local before, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local meta = call('HGET', D, 'm')
if not meta then return {3, ''} end
local function later(a, b) -- the younger of two transactions
  local a1, a2, a3 = from('>I6I6I4', a)
  local b1, b2, b3 = from('>I6I6I4', b)
  if a1 > b1 or (a1 == b1 and (a2 > b2 or (a2 == b2 and a3 > b3))) then return a end
  return b
end
local barred, forgotten, horizon = sub(meta, 25, 40), sub(meta, 41, 56), sub(meta, 17, 24)
call('HDEL', D, '') -- a script that has deleted may go on to write even when memory is short
local dropped, work, more, last, parts = 0, 0, 0
local found = call('XRANGE', KEYS[4], '-', '+', 'COUNT', 1) -- nearly always the oldest may stay
if found[1] and tonumber(found[1][2][2]) < before then found = call('XRANGE', KEYS[4], '-', '+', 'COUNT', most) end
for j = 1, #found do
  local f = found[j][2]
  if tonumber(f[2]) >= before then break end
  if work > 2000 then more = 1 break end
  local position, part = string.match(found[j][1], '^(%d+)%-(%d+)$')
  last, parts, dropped, work = position, part, dropped + 1, work + 1
  local own = pack('>I8', tonumber(position))
  horizon = own
  for m = 5, #f, 2 do
    if f[m] ~= 'a' then
      local k = f[m + 1]
      local p = pack('>I4', #k) .. k
      local low, high = '[' .. p, '(' .. p .. own
      local old = call('ZRANGEBYLEX', KEYS[3], low, high)
      for o = 1, #old do
        if byte(old[o], #p + 17) % 4 >= 2 then call('HDEL', KEYS[7], sub(old[o], 1, #p + 8)) end
      end
      if #old > 0 then
        call('ZREMRANGEBYLEX', KEYS[3], low, high)
        dropped = dropped + #old
      end
      if f[m] == 'd' or f[m] == 'c' then
        local e = call('HGET', D, k)
        if e and sub(e, 1, 8) == own and byte(e, 17) % 2 == 1 then
          call('HDEL', D, k)
          call('ZREM', KEYS[2], k)
          dropped = dropped + 1
        end
      end
      work = work + 1 + #old
    end
  end
  if f[4] ~= '' then
    local transaction = sub(f[4], 1, 16)
    local born = from('>I6', transaction)
    if born * 1000 < before then
      call('HDEL', D, 'x' .. transaction)
      forgotten = later(forgotten, transaction)
    else -- its id says that it is from the future: remembered until then
      call('ZADD', KEYS[6], born, 'x' .. transaction)
    end
  end
end
if last then call('XTRIM', KEYS[4], 'MINID', string.format('%s-%d', last, parts + 1)) end
if #found == most then more = 1 end
local settled = call('ZRANGEBYSCORE', KEYS[6], '-inf', '(' .. string.format('%.0f', before / 1000), 'LIMIT', 0, most)
for j = 1, #settled do
  local transaction = sub(settled[j], 2)
  if call('HGET', D, settled[j]) == 'A' then barred = later(barred, transaction) end
  forgotten = later(forgotten, transaction)
  call('HDEL', D, settled[j])
  call('ZREM', KEYS[6], settled[j])
  dropped = dropped + 1
end
if #settled == most then more = 1 end
if dropped > 0 then call('HSET', D, 'm', sub(meta, 1, 16) .. horizon .. barred .. forgotten) end
return {0, dropped, more}
